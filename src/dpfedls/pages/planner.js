// The planner's page: controls, what follows from them, and the plan as a recipe and as a link.
"use strict";

const CONTROLS = {
  clients: { label: "People", hint: "who could take part", low: 100, high: 1e7, start: 5000, whole: true },
  cohort: { label: "Cohort", hint: "expected in a round", low: 10, high: 1e5, start: 100, whole: true },
  rounds: { label: "Rounds", hint: "", low: 1, high: 5000, start: 200, whole: true },
  noise: { label: "Noise multiplier", hint: "noise on the sum ÷ clip norm", low: 0.5, high: 20, start: 1.2 },
  clip: { label: "Clip norm", hint: "length of an update at most; ε does not depend on it", low: 0.01, high: 100, start: 1 },
  delta: { label: "δ", hint: "people^−1.1 unless you move it", low: 1e-9, high: 1e-2, start: null },
};
const SLIDER_STEPS = 1000;
const $ = (id) => document.getElementById(id);
const plan = { sampling: "poisson" };

// ── Controls ⇄ plan ──

const digits = (value, count) => Number(value.toPrecision(count));
const round = ({ whole }, value) => (whole && value >= 1 ? Math.round(digits(value, value < 1e3 ? 3 : 2)) : digits(value, 3));
const fromSlider = (control, place) =>
  round(control, control.low * (control.high / control.low) ** (place / SLIDER_STEPS));
const toSlider = ({ low, high }, value) =>
  Math.round((SLIDER_STEPS * Math.log(value / low)) / Math.log(high / low));

function build() {
  for (const [name, control] of Object.entries(CONTROLS)) {
    const box = document.createElement("div");
    box.className = "slider";
    box.innerHTML =
      `<label for="${name}">${control.label} <small>${control.hint}</small></label><div class="row">` +
      `<input type="range" id="${name}-slider" min="0" max="${SLIDER_STEPS}" aria-label="${control.label}, slider">` +
      `<input type="number" id="${name}" min="${control.low}" max="${control.high}" step="any"></div>`;
    $("sliders").append(box);
    $(`${name}-slider`).addEventListener("input", (event) => set(name, fromSlider(control, Number(event.target.value))));
    $(name).addEventListener("change", (event) => set(name, Number(event.target.value)));
  }
  for (const radio of document.querySelectorAll("[name=sampling]"))
    radio.addEventListener("change", () => set("sampling", radio.value));
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("target").addEventListener("change", later);
  addEventListener("hashchange", () => { read(); show(); });
}

const within = ({ low, high, whole }, value) => {
  const inside = Math.min(high, Math.max(low, value));
  return whole ? Math.round(inside) : inside;
};

function set(name, value) {
  if (name === "sampling") plan.sampling = value === "fixed" ? "fixed" : "poisson";
  else if (name === "delta" && !(value > 0)) plan.delta = null; // back to people^−1.1
  else if (Number.isFinite(value)) plan[name] = within(CONTROLS[name], value);
  if (plan.cohort > plan.clients) {
    if (name === "clients") plan.cohort = plan.clients;
    else plan.clients = plan.cohort;
  }
  show();
}

function read() {
  for (const [name, control] of Object.entries(CONTROLS)) plan[name] = control.start;
  plan.sampling = "poisson";
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [name, control] of Object.entries(CONTROLS)) {
    const value = Number(given.get(name) ?? NaN);
    if (value > 0 && Number.isFinite(value)) plan[name] = within(control, value);
  }
  if (given.get("sampling") === "fixed") plan.sampling = "fixed";
  plan.cohort = Math.min(plan.cohort, plan.clients);
}

function link() {
  const values = new URLSearchParams({ sampling: plan.sampling });
  for (const name of Object.keys(CONTROLS)) if (plan[name] !== null) values.set(name, String(plan[name]));
  return `#${values}`;
}

// ── What is shown ──

const number = (value, count = 4) =>
  !Number.isFinite(value) ? `more than ${LARGEST_EPSILON}` : value !== 0 && Math.abs(value) < 1e-3
    ? value.toExponential(2) : String(digits(value, count));
const count = (value) => Math.round(value).toLocaleString("en");

function show() {
  const delta = deltaOf(plan);
  for (const [name, control] of Object.entries(CONTROLS)) {
    const value = name === "delta" ? delta : plan[name];
    // A rounded value may belong to the step before: the slider in hand is not pushed back.
    if (document.activeElement !== $(`${name}-slider`)) $(`${name}-slider`).value = toSlider(control, value);
    $(`${name}-slider`).setAttribute("aria-valuetext", number(value));
    if (document.activeElement !== $(name)) $(name).value = name === "delta" ? delta.toExponential(3) : value;
  }
  document.querySelector(`[name=sampling][value=${plan.sampling}]`).checked = true;
  history.replaceState(null, "", link());

  const found = profiles(plan), epsilon = pldEpsilon(plan, plan.rounds, found);
  const shares = Array.from({ length: 101 }, (_, k) => k / 100);
  const truths = bestAttack(plan, found, shares);
  $("epsilon").textContent = $("bar").textContent = $("seen").textContent = number(epsilon);
  $("epsilon").dataset.value = epsilon;
  $("delta-shown").textContent = delta.toExponential(2);
  $("waste").textContent = Number.isFinite(epsilon) && epsilon > 1e-6 ? digits(waste(plan, epsilon), 3) : "–";
  $("turns").textContent = number((plan.rounds * plan.cohort) / plan.clients, 3);
  $("work").textContent = count(plan.rounds * plan.cohort);
  $("noise-average").textContent = number((plan.noise * plan.clip) / plan.cohort, 3);
  $("known").textContent = number(knownEpsilon(plan));
  const others = plan.sampling === "fixed" ? "people who could have taken part in their place" : "non-participants";
  $("meaning").textContent =
    `An attacker who sees the models, and wrongly accuses 1 in 100 ${others}, can identify at most ` +
    `${(Math.ceil(1000 * truths[1]) / 10).toFixed(1)} in 100 participants. Blind guessing identifies 1.`;
  draw($("attack-chart"), [shares.map((x, k) => [x, truths[k]]), [[0, 0], [1, 1]]], "false", "true",
    "True against false suspicions; dashed: guessing");
  const exposed = delta * plan.clients;
  $("warning").hidden = exposed < 1;
  $("warning").textContent = exposed < 1 ? "" : exposed > 10
    ? `δ is too large for ${count(plan.clients)} people: a mechanism that publishes the data of ${count(exposed)} of them would satisfy it, and a run refuses it.`
    : "δ is not below 1/people: a mechanism that publishes the data of one random person would satisfy it.";
  showRecorded(epsilon);
  $("recipe").textContent = recipe(epsilon);
  $("save-recipe").href = `data:application/toml;charset=utf-8,${encodeURIComponent(recipe(epsilon))}`;
  $("command").textContent = command();
  later();
}

function showRecorded(epsilon) {
  const rows = nearestRecorded(RECORDED, epsilon, plan.clients);
  $("recorded-note").textContent = recordedNote(rows, RECORDED, plan.clients);
  $("recorded-table").hidden = !rows.length;
  const accuracy = ([mean, deviation]) => mean.toFixed(2) + (deviation === null ? "" : ` ± ${deviation.toFixed(2)}`);
  $("recorded").replaceChildren(...rows.map((row) => {
    const line = document.createElement("tr");
    const cells = [row.what, String(row.epsilon), accuracy(row.automatic), accuracy(row.plain)];
    cells.forEach((text, k) => Object.assign(line.insertCell(), { textContent: text, className: k ? "number" : "" }));
    return line;
  }));
}

// What takes longer follows when the sliders rest, a little at a time so that they keep moving.
let turn = 0;

function later() {
  const mine = ++turn, target = Number($("target").value), points = [];
  $("people").textContent = "…";
  const counts = [...new Set(Array.from({ length: 13 }, (_, k) => Math.max(1, Math.round((plan.rounds * k) / 12))))];
  const steps = counts.map((t) => () => {
    points.push([t, pldEpsilon(plan, t)]);
    const drawn = points.filter(([, epsilon]) => Number.isFinite(epsilon));
    if (points.length === counts.length) draw($("rounds-chart"), [drawn], "round", "ε", "ε after each round");
  });
  steps.push(() => {
    const people = target > 0 ? peopleNeeded(plan, target) : null;
    $("people").textContent = people === null ? "no number of people is enough" : `about ${count(digits(people, 3))} people`;
    document.body.dataset.done = link();
  });
  const next = () => {
    if (mine !== turn || !steps.length) return;
    steps.shift()();
    setTimeout(next, 0);
  };
  setTimeout(next, 120);
}

// ── Charts ──

function ticks(low, high) {
  const rough = (high - low) / 4 || Math.abs(high) / 4 || 1, unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 2.5, 5, 10].find((m) => m * unit >= rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(digits(k * step, 10));
  return found;
}

function draw(place, lines, xLabel, yLabel, title) {
  const [width, height, left, right, top, bottom] = [400, 260, 46, 16, 8, 38];
  const all = lines.flat();
  if (!all.length) { place.replaceChildren(); return; }
  const [xLow, xHigh] = [Math.min(...all.map((p) => p[0])), Math.max(...all.map((p) => p[0]))];
  const yHigh = Math.max(...all.map((p) => p[1]), 1e-9);
  const x = (value) => left + ((value - xLow) * (width - left - right)) / (xHigh - xLow || 1);
  const y = (value) => height - bottom - (value * (height - top - bottom)) / yHigh;
  const parts = [`<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${title}">`];
  for (const tick of ticks(0, yHigh))
    parts.push(`<line class="grid" x1="${left}" x2="${width - right}" y1="${y(tick)}" y2="${y(tick)}"/>` +
      `<text x="${left - 6}" y="${y(tick) + 4}" text-anchor="end">${tick}</text>`);
  for (const tick of ticks(xLow, xHigh))
    parts.push(`<text x="${x(tick)}" y="${height - 21}" text-anchor="middle">${tick}</text>`);
  parts.push(`<text x="${(width + left) / 2}" y="${height - 5}" text-anchor="middle">${xLabel}</text>` +
    `<text transform="translate(11 ${height / 2}) rotate(-90)" text-anchor="middle">${yLabel}</text>`);
  lines.forEach((line, k) => parts.push(`<polyline class="s${k ? 2 : 1}"${k ? ' stroke-dasharray="5 4"' : ""} points="` +
    `${line.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ")}"/>`));
  place.innerHTML = `${parts.join("")}</svg>`;
}

// ── To take along ──

// In TOML a float needs a point or an exponent.
const float = (value) => (Number.isInteger(value) && value < 1e15 ? `${value}.0` : String(value));

const sampler = () => plan.sampling === "fixed"
  ? `{ kind = "fixed", cohort = ${plan.cohort} }`
  : `{ kind = "poisson", rate = ${float(plan.cohort / plan.clients)} }`;

const recipe = (epsilon) => `# dpfedls run plan.toml            ε is ${number(epsilon)} at δ = ${deltaOf(plan).toExponential(2)} for each person
task = "synthetic-logistic"        # or your own: "./tasks.py:make"
denoiser = { kind = "laplacian", strength = 1.0 }

[plan]
sampler = ${sampler()}
num_clients = ${plan.clients}
rounds = ${plan.rounds}
clip_norm = ${float(plan.clip)}
noise_multiplier = ${float(plan.noise)}
${plan.delta === null ? "" : `delta = ${float(plan.delta)}\n`}
[local]
epochs = 5
batch_size = 10
learning_rate = 0.1
`;

const command = () =>
  `dpfedls privacy epsilon --sampling ${plan.sampling} --clients ${plan.clients} --rate ${plan.cohort / plan.clients} ` +
  `--rounds ${plan.rounds} --noise-multiplier ${plan.noise}${plan.delta === null ? "" : ` --delta ${plan.delta}`}`;

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    $("copied").textContent = `${what} copied.`;
  } catch {
    $("copied").textContent = `The browser does not allow it here; ${what.toLowerCase()} can be selected and copied by hand.`;
  }
}

build();
read();
show();
$("copy-link").addEventListener("click", () => copy(location.href, "Link"));
$("copy-recipe").addEventListener("click", () => copy($("recipe").textContent, "Recipe"));
