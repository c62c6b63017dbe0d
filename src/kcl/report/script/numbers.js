// Means, spreads and what follows from an accuracy matrix.
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
function spread(values, band) {
  if (values.length < 2) return 0;
  const centre = mean(values);
  const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - centre) ** 2, 0) / (values.length - 1));
  if (band !== "interval") return deviation;
  return data.t[values.length - 2] * deviation / Math.sqrt(values.length);
}
/** Mean and spread over runs of a number each; null where any run lacks it: nothing is averaged over what is there. */
function over(runs, value) {
  const values = runs.map(value);
  if (!values.length || values.some((v) => v === null || v === undefined)) return null;
  return { mean: mean(values), spread: spread(values, state.band), size: values.length };
}
const runsOf = (group) => group.runs.filter((run) => !run.diverged && state.seeds.has(run.seed));
function averageAfter(run, t) {
  const row = run.matrix[t];
  return row && row.every((value) => value !== null) ? mean(row) : null;
}
const onTask = (run, t, i) => (run.matrix[t] ? run.matrix[t][i] ?? null : null);
/** Best accuracy on a task before the last one was learned, minus the last: a term of Eq. 13, as a fraction. */
function forgotten(run, i) {
  const last = run.matrix.length - 1;
  const column = run.matrix.slice(i, last).map((row) => row[i]);
  const end = onTask(run, last, i);
  return i >= last || end === null || column.some((value) => value === null) ? null : (Math.max(...column) - end) / 100;
}
const share = (run) => run.seconds / run.together;
const shown = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
