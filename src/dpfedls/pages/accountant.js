// ε in the browser: the privacy loss of one round on a grid, composed by FFT.
//
// The same mathematics as privacy/accounting (docs/privacy.md, section 3), in short: within 1e-3 of
// it, which a test states, but without its proof that every rounding is charged. A run is accounted
// for in Python.
//
// Notation: q is the sampling rate, mu = sensitivity ÷ noise, P = (1 − q)·N(0, 1) + q·N(mu, 1) is a
// round with one person and Q = N(0, 1) one without; the loss is log(P/Q).
"use strict";

const MOST_STEPS = 2 ** 18; // of a grid; beyond it the grid is coarsened
const STEPS_PER_DEVIATION = 64; // grid steps to one standard deviation of a round's loss
const LARGEST_EPSILON = 100; // beyond it there is nothing to tell apart

const mechanism = (plan) => ({
  q: Math.min(1, plan.cohort / plan.clients),
  mu: (plan.sampling === "fixed" ? 2 : 1) / plan.noise, // replace-one moves the sum by two clip norms
  symmetric: plan.sampling === "fixed",
});

const deltaOf = (plan) => plan.delta ?? Math.max(plan.clients, 2) ** -1.1;

// ── The normal distribution ──

// Φ(−x)·√(2π)·e^(x²/2), Mills' ratio, for x >= 0: a series below 2, a continued fraction above.
function mills(x) {
  if (x < 2) {
    let term = x, sum = x; // Φ(x) − ½ = φ(x)·Σ x^(2k+1)/(1·3·…·(2k+1))
    for (let k = 1; k < 60; k++) sum += term *= (x * x) / (2 * k + 1);
    return Math.sqrt(Math.PI / 2) * Math.exp((x * x) / 2) - sum;
  }
  let fraction = x;
  for (let k = 120; k > 0; k--) fraction = x + k / fraction;
  return 1 / fraction;
}

const density = (x) => Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);
const tailOf = (x) => (x >= 0 ? density(x) * mills(x) : 1 - tailOf(-x)); // Φ(−x)

// δ(ε) of N(mu, 1) against N(0, 1); e^ε·φ(x + mu) = φ(x), so no huge number meets another.
function gaussianDelta(epsilon, mu) {
  const x = epsilon / mu - mu / 2;
  const second = x + mu >= 0 ? density(x) * mills(x + mu) : Math.exp(epsilon) * tailOf(x + mu);
  return Math.max(0, tailOf(x) - second);
}

// The x in [low, high] where a falling function crosses zero.
function crossing(falling, low, high) {
  for (let k = 0; k < 60 && high - low > 1e-7 * (1 + Math.abs(low)); k++) {
    const middle = (low + high) / 2;
    if (falling(middle) > 0) low = middle;
    else high = middle;
  }
  return high;
}

const gaussianEpsilon = (mu, delta) =>
  gaussianDelta(0, mu) <= delta
    ? 0
    : crossing((e) => gaussianDelta(e, mu) - delta, 0, mu * mu / 2 + 40 * mu);

const gaussianMu = (epsilon, delta) =>
  Math.exp(crossing((log) => delta - gaussianDelta(epsilon, Math.exp(log)), -20, 8));

// ── One round ──

const POINTS = [-0.8611363115940526, -0.3399810435848563, 0.3399810435848563, 0.8611363115940526];
const WEIGHTS = [0.3478548451374538, 0.6521451548625461, 0.6521451548625461, 0.3478548451374538];

// Losses and masses of one round in each direction: one for replace-one, two for add and remove.
// Gauss's nodes in panels that meet at x = mu/2, where the loss is zero whatever q is.
function oneRound({ q, mu, symmetric }, tail) {
  const width = 0.04, removed = { losses: [], masses: [] }, added = { losses: [], masses: [] };
  const panels = Math.ceil((mu / 2 + tail) / width);
  for (let panel = -panels; panel < panels; panel++) {
    for (let k = 0; k < 4; k++) {
      const x = mu / 2 + width * (panel + (1 + POINTS[k]) / 2);
      const part = (width / 2) * WEIGHTS[k];
      const without = part * density(x), taking = part * density(x - mu);
      const ratio = mu * (x - mu / 2);
      const loss = ratio > 30 ? ratio + Math.log(q + (1 - q) * Math.exp(-ratio))
        : Math.log1p(q * Math.expm1(ratio));
      removed.losses.push(loss);
      removed.masses.push((1 - q) * without + q * taking);
      added.losses.push(-loss);
      added.masses.push(without);
    }
  }
  return symmetric ? [bothWays(removed)] : [removed, added];
}

// Replace-one: what can be lost can be lost in either order (docs/privacy.md), the rest is at zero.
function bothWays({ losses, masses }) {
  const both = { losses: [0], masses: [1] };
  losses.forEach((loss, k) => {
    if (loss <= 0) return;
    const back = masses[k] * Math.exp(-loss);
    both.losses.push(loss, -loss);
    both.masses.push(masses[k], back);
    both.masses[0] -= masses[k] + back;
  });
  return both;
}

// log E[e^(order·loss)].
function cumulant({ losses, masses }, order) {
  let largest = -Infinity, sum = 0;
  for (let k = 0; k < losses.length; k++) if (masses[k] > 0) largest = Math.max(largest, order * losses[k]);
  for (let k = 0; k < losses.length; k++) sum += masses[k] * Math.exp(order * losses[k] - largest);
  return largest + Math.log(sum);
}

// Chernoff's bound: the loss of all rounds is beyond it, in the order's direction, with e^−rare.
function edge(round, rounds, rare, sign, deviation) {
  let best = Infinity;
  const guess = Math.sqrt((2 * rare) / rounds) / deviation;
  for (let order = 64 * guess; order > Math.min(guess / 64, 0.2); order /= 1.5) {
    const found = (rounds * cumulant(round, sign * order) + rare) / order;
    if (found < best) best = found;
  }
  return sign * best;
}

// ── Composition ──

const twiddles = new Map();

function roots(n) {
  if (!twiddles.has(n)) {
    const cos = new Float64Array(n / 2), sin = new Float64Array(n / 2);
    for (let k = 0; k < n / 2; k++) {
      cos[k] = Math.cos((2 * Math.PI * k) / n);
      sin[k] = Math.sin((2 * Math.PI * k) / n);
    }
    twiddles.set(n, { cos, sin });
  }
  return twiddles.get(n);
}

// The Fourier transform in place, of a length that is a power of two; exchange re and im to undo it.
function fft(re, im) {
  const n = re.length, { cos, sin } = roots(n);
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [re[i], re[j]] = [re[j], re[i]];
      [im[i], im[j]] = [im[j], im[i]];
    }
  }
  for (let size = 2; size <= n; size *= 2) {
    const half = size / 2, step = n / size;
    for (let start = 0; start < n; start += size) {
      for (let k = 0; k < half; k++) {
        const c = cos[k * step], s = -sin[k * step], i = start + k, j = i + half;
        const x = re[j] * c - im[j] * s, y = re[j] * s + im[j] * c;
        re[j] = re[i] - x;
        im[j] = im[i] - y;
        re[i] += x;
        im[i] += y;
      }
    }
  }
}

// δ at losses step·(first + i) of so many rounds.
function composed({ losses, masses }, rounds, step, first, n) {
  const re = new Float64Array(n), im = new Float64Array(n), ring = (k) => ((k % n) + n) % n;
  for (let k = 0; k < losses.length; k++) {
    // Connect the dots: split a mass between two neighbours so that its probabilities with and
    // without the person both stay (Doroshenko et al. 2022).
    const below = Math.floor(losses[k] / step);
    const share = Math.expm1(below * step - losses[k]) / Math.expm1(-step);
    re[ring(below)] += masses[k] * (1 - share);
    re[ring(below + 1)] += masses[k] * share;
  }
  fft(re, im);
  for (let k = 0; k < n; k++) {
    const size = Math.hypot(re[k], im[k]) ** rounds, angle = rounds * Math.atan2(im[k], re[k]);
    re[k] = size * Math.cos(angle);
    im[k] = size * Math.sin(angle);
  }
  fft(im, re);
  const deltas = new Float64Array(n), shrink = Math.exp(-step), grow = -Math.expm1(-step);
  let beyond = 0;
  for (let i = n - 1; i >= 0; i--) {
    // δ_i = e^−h·δ_{i+1} + (1 − e^−h)·Σ_{j>i} p_j.
    deltas[i] = (i + 1 < n ? shrink * deltas[i + 1] : 0) + grow * beyond;
    beyond += re[ring(first + i)] / n;
  }
  return { step, first, deltas };
}

function epsilonAt({ step, first, deltas }, delta) {
  let last = deltas.length - 1;
  while (last >= 0 && !(deltas[last] > delta)) last--;
  if (last < 0) return Math.max(0, step * first);
  if (last + 1 === deltas.length) return Infinity;
  const share = (deltas[last] - delta) / (deltas[last] - deltas[last + 1]);
  return Math.max(0, step * (first + last) + Math.log1p(share * Math.expm1(step)));
}

// The composed loss of a plan in each direction; none where everybody takes part or it is huge.
function profiles(plan, rounds = plan.rounds) {
  const round = mechanism(plan), rare = Math.log(1e7 / deltaOf(plan));
  if (round.q === 1) return [];
  const tail = Math.sqrt(2 * (rare + Math.log(rounds)));
  const directions = oneRound(round, tail);
  // Root mean square of the loss without the person: how fine the grid must be.
  const added = oneRound({ ...round, symmetric: false }, 8)[1];
  const deviation = Math.sqrt(added.losses.reduce((sum, l, k) => sum + added.masses[k] * l * l, 0));
  return directions.map((one) => {
    const low = edge(one, rounds, rare, -1, deviation), high = edge(one, rounds, rare, 1, deviation);
    // Splitting masses moves the sum by at most so many steps, but for e^−rare (Hoeffding).
    const moved = Math.ceil(Math.sqrt((rounds * rare) / 2)) + 2;
    const step = Math.max(deviation / STEPS_PER_DEVIATION, (high - low) / (MOST_STEPS - 2 * moved - 4));
    const first = Math.floor(low / step) - moved, steps = Math.ceil(high / step) + moved - first;
    return composed(one, rounds, step, first, 2 ** Math.ceil(Math.log2(Math.max(steps, 16))));
  });
}

// Everybody in every round: together one Gaussian, and never less private than with sampling.
const unsampledEpsilon = (plan, rounds) =>
  gaussianEpsilon(mechanism(plan).mu * Math.sqrt(rounds), deltaOf(plan));

// ε by privacy loss distributions, Python's ``pld``; infinite above LARGEST_EPSILON.
function pldEpsilon(plan, rounds = plan.rounds, found = profiles(plan, rounds)) {
  const sampled = Math.max(...found.map((one) => epsilonAt(one, deltaOf(plan))));
  const least = Math.min(unsampledEpsilon(plan, rounds), found.length ? sampled : Infinity);
  return least > LARGEST_EPSILON ? Infinity : least;
}

// ε against whoever knows when a person took part: k of T rounds, each a Gaussian, k binomial.
function knownEpsilon(plan) {
  const { q, mu } = mechanism(plan), delta = deltaOf(plan), T = plan.rounds;
  if (q === 1) return pldEpsilon(plan);
  const counts = [];
  let log = T * Math.log1p(-q);
  for (let k = 0; k <= T; k++) {
    if (log > Math.log(delta) - 14) counts.push([k, Math.exp(log)]);
    log += Math.log(((T - k) / (k + 1)) * (q / (1 - q)));
  }
  const few = Math.max(1, Math.floor(counts.length / 400)); // neighbouring counts cost nearly the same
  const cost = (epsilon) => {
    let sum = 0;
    for (let i = 0; i < counts.length; i += few) {
      const group = counts.slice(i, i + few), weight = group.reduce((total, [, p]) => total + p, 0);
      const mean = group.reduce((total, [k, p]) => total + k * p, 0) / weight;
      if (mean > 0) sum += weight * gaussianDelta(epsilon, mu * Math.sqrt(mean));
    }
    return sum;
  };
  const most = unsampledEpsilon(plan, T);
  return cost(0) <= delta ? 0 : crossing((epsilon) => cost(epsilon) - delta, 0, most);
}

// ── What follows from ε ──

// Noise of the whole run beside that of one release at the same (ε, δ), as shares of what is learnt.
function waste(plan, epsilon) {
  const { q, mu } = mechanism(plan);
  return gaussianMu(epsilon, deltaOf(plan)) / (mu * q * Math.sqrt(plan.rounds));
}

// The largest share of true suspicions at each share of false ones.
function bestAttack(plan, found, shares) {
  const mu = mechanism(plan).mu * Math.sqrt(plan.rounds);
  const curve = [];
  if (found.length) {
    const { step, first, deltas } = found[0], every = Math.max(1, Math.floor(deltas.length / 4000));
    for (let i = 0; i < deltas.length; i += every) curve.push([Math.exp(step * (first + i)), deltas[i]]);
  } else {
    for (let e = -40; e <= 40; e += 0.02) {
      const delta = e >= 0 ? gaussianDelta(e, mu) : 1 - Math.exp(e) + Math.exp(e) * gaussianDelta(-e, mu);
      curve.push([Math.exp(e), delta]);
    }
  }
  return shares.map((share) =>
    Math.max(share, curve.reduce((least, [factor, delta]) => Math.min(least, delta + factor * share), 1)));
}

// The fewest people, to three digits, with whom this cohort, noise and number of rounds keep to ε.
function peopleNeeded(plan, target) {
  const enough = (clients) => pldEpsilon({ ...plan, clients }) <= target;
  let high = plan.cohort, low = high;
  while (!enough(high)) {
    low = high;
    high *= 4;
    if (high > 1e9) return null;
  }
  while (high - low > Math.max(1, high / 500)) {
    const middle = Math.round(Math.sqrt(low * high));
    if (middle <= low || middle >= high) break;
    if (enough(middle)) high = middle;
    else low = middle;
  }
  return high;
}
