"""What ``train(epsilon=…)`` decides, each decision a function that can be read.

Nothing here looks at anybody's data: every choice follows from the number of people, ε, δ and the
limits a person states, so it costs no privacy.
"""
