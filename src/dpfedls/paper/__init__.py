"""The paper, regenerated: every table and figure by one command, ours beside theirs."""
