"""The paper's theory as functions (arXiv:2005.00218): what it says for the numbers at hand.

``ring`` is the spectrum of the smoothing and Proposition 1; ``convergence`` Theorems 4 to 6;
``budget`` Theorem 1 with the rounds and the noise it allows; ``rates`` Theorem 3 and Corollary 1;
``table`` Table 1; ``lemmas`` Lemmas 7 to 9; ``membership`` the bound of Section 6.4. Where the
paper slips, docs/theory.md says how, and the code holds what the proof gives.
"""

from dpfedls.theory.budget import Budget as Budget
from dpfedls.theory.budget import round_constant as round_constant
from dpfedls.theory.budget import settle as settle
from dpfedls.theory.convergence import Bound as Bound
from dpfedls.theory.convergence import Case as Case
from dpfedls.theory.convergence import Condition as Condition
from dpfedls.theory.convergence import Problem as Problem
from dpfedls.theory.convergence import averaging_ratio as averaging_ratio
from dpfedls.theory.convergence import convergence as convergence
from dpfedls.theory.convergence import largest_step as largest_step
from dpfedls.theory.convergence import noise_level as noise_level
from dpfedls.theory.convergence import step_free_bound as step_free_bound
from dpfedls.theory.lemmas import fixed_size_variance as fixed_size_variance
from dpfedls.theory.lemmas import local_divergence as local_divergence
from dpfedls.theory.lemmas import perturbed_convexity as perturbed_convexity
from dpfedls.theory.lemmas import poisson_variance as poisson_variance
from dpfedls.theory.membership import excess_probability as excess_probability
from dpfedls.theory.membership import largest_auc as largest_auc
from dpfedls.theory.membership import largest_excess as largest_excess
from dpfedls.theory.rates import communication as communication
from dpfedls.theory.rates import utility as utility
from dpfedls.theory.ring import Risk as Risk
from dpfedls.theory.ring import effective_dimension as effective_dimension
from dpfedls.theory.ring import effective_dimension_by_sum as effective_dimension_by_sum
from dpfedls.theory.ring import eigenvalues as eigenvalues
from dpfedls.theory.ring import risk as risk
from dpfedls.theory.ring import smallest_eigenvalue as smallest_eigenvalue
from dpfedls.theory.ring import squared_norm as squared_norm
from dpfedls.theory.table import TABLE_1 as TABLE_1
from dpfedls.theory.table import Target as Target
from dpfedls.theory.table import table_1 as table_1
