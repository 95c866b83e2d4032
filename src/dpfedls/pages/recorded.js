// What recorded experiments reached near a plan's ε; RECORDED stands before this, from recorded.json.
"use strict";

const AS_NEAR = Math.SQRT2 * (1 + 1e-9); // recorded ε double from one to the next
const AS_MANY = 3;
const apart = (a, b) => Math.max(a / b, b / a);

/** Of each experiment the row at the nearest ε, if it is near; those with as many people first. */
function nearestRecorded(rows, epsilon, clients) {
  const best = new Map();
  for (const row of rows) {
    const known = best.get(row.what);
    if (!known || apart(row.epsilon, epsilon) < apart(known.epsilon, epsilon)) best.set(row.what, row);
  }
  return [...best.values()]
    .filter((row) => apart(row.epsilon, epsilon) <= AS_NEAR)
    .sort((a, b) => apart(a.people, clients) - apart(b.people, clients));
}

/** One sentence on what the rows are worth for so many people. */
function recordedNote(rows, all, clients) {
  const known = all.map((row) => row.epsilon);
  if (!rows.length)
    return `No experiment is recorded near this ε; those there are lie between ε = ${Math.min(...known)} and ${Math.max(...known)}.`;
  const few = rows.every((row) => apart(row.people, clients) > AS_MANY)
    ? " None of them had about as many people as this plan." : "";
  return `Examples, not a forecast: your data and your model decide.${few}`;
}
