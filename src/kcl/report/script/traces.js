// Curves with bands, and axes, as Plotly takes them.
function line(x, points, label, style, key) {
  const traces = [];
  const there = x.map((_, k) => k).filter((k) => points[k]);
  if (there.some((k) => points[k].spread > 0)) {
    const upper = there.map((k) => points[k].mean + points[k].spread);
    const lower = there.map((k) => points[k].mean - points[k].spread).reverse();
    const xs = there.map((k) => x[k]);
    traces.push({
      type: "scatter", mode: "lines", x: [...xs, ...[...xs].reverse()], y: [...upper, ...lower], fill: "toself",
      fillcolor: rgba(style.colour, 0.16), line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: key,
    });
  }
  traces.push({
    type: "scatter", mode: "lines+markers", name: label, legendgroup: key, x, y: points.map((p) => p && p.mean),
    text: points.map((p) => (p && p.spread ? ` ± ${p.spread.toFixed(2)}` : "")),
    line: { color: style.colour, dash: style.dash, width: 2 }, marker: { symbol: style.marker, size: 6 },
    hovertemplate: "%{y:.2f}%{text}<extra>%{fullData.name}</extra>",
  });
  return traces;
}
const axis = (title, more = {}) => ({
  title: { text: title, standoff: 8 }, gridcolor: "#d1d9e0", zeroline: false, linecolor: "#8c959f", ticks: "outside",
  tickcolor: "#8c959f", automargin: true, ...more,
});
/** Whole numbers only, at most ten of them, beginning with the first. */
const tasksAxis = (title, first, count, more = {}) =>
  axis(title, { tickmode: "linear", tick0: first, dtick: Math.max(1, Math.ceil(count / 10)), ...more });
const longest = () => Math.max(1, ...chosen().map((group) => group.tasks));

const bandWords = () =>
  ({ interval: "band: 95 % interval", deviation: "band: standard deviation", runs: "every run a line" })[state.band];
/** The sign stands for a standard deviation, as in the tables, unless the reader chooses the interval. */
const plusMinus = () => (state.band === "interval" ? "± half the 95 % interval" : "± standard deviation");
