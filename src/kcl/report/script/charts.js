// The charts: what each draws, its numbers as a table, and its words for who cannot see it.
const CHARTS = {
  average: {
    draw() {
      const traces = [];
      for (const group of chosen()) {
        const runs = runsOf(group), style = look(group), label = wrapped(name(group)), key = name(group);
        const x = Array.from({ length: group.tasks }, (_, t) => t + 1);
        if (!group.history) {
          const end = over(runs, (run) => averageAfter(run, run.matrix.length - 1));
          if (end) traces.push(...line([1, group.tasks], [end, end], label, { ...style, dash: "longdash" }, key));
        } else if (state.band === "runs") {
          runs.forEach((run, place) => {
            const points = x.map((_, t) => averageAfter(run, t)).map((v) => v === null ? null : { mean: v, spread: 0 });
            const [trace] = line(x, points, label, style, key);
            traces.push({ ...trace, showlegend: place === 0, opacity: 0.7, text: x.map(() => ` (seed ${run.seed})`) });
          });
        } else {
          traces.push(...line(x, x.map((_, t) => over(runs, (run) => averageAfter(run, t))), label, style, key));
        }
      }
      return { traces, layout: { xaxis: tasksAxis("tasks learned", 1, longest()), yaxis: axis("average accuracy %") } };
    },
    table() {
      const most = Math.max(0, ...chosen().map((group) => group.tasks));
      const head = ["tasks learned", ...chosen().flatMap((group) => [name(group), plusMinus()])];
      const rows = Array.from({ length: most }, (_, t) => [
        String(t + 1),
        ...chosen().flatMap((group) => pair(over(runsOf(group), (run) => averageAfter(run, t)))),
      ]);
      return { head, rows };
    },
    words: () =>
      `Average accuracy over the tasks seen, after each task. At the end: ${ends("average", 1, " %")}.`,
  },
  tasks: {
    one: true,
    draw() {
      const group = state.shown, traces = [];
      if (group) {
        for (let i = 0; i < group.tasks; i += 1) {
          const x = Array.from({ length: group.tasks - i }, (_, k) => i + k + 1);
          const points = x.map((t) => over(runsOf(group), (run) => onTask(run, t - 1, i)));
          const style = { colour: ramp(i / Math.max(1, group.tasks - 1)), dash: DASHES[i % 4], marker: MARKERS[i % 7] };
          traces.push(...line(x, points, `task ${i + 1}`, style, `task ${i + 1}`));
        }
      }
      const xaxis = tasksAxis("tasks learned", 1, group ? group.tasks : 1);
      return { traces, layout: { xaxis, yaxis: axis("accuracy on the task %") } };
    },
    table: matrixTable,
    words: () => `Accuracy on each task, from when it is learned to the end: ${state.shown ? name(state.shown) : ""}.`,
  },
  matrix: {
    one: true,
    draw() {
      const group = state.shown;
      if (!group) return { traces: [], layout: {} };
      const numbers = Array.from({ length: group.tasks }, (_, k) => k + 1);
      const z = numbers.map((t) =>
        numbers.map((i) => over(runsOf(group), (run) => onTask(run, t - 1, i - 1))?.mean ?? null));
      return {
        traces: [{
          type: "heatmap", x: numbers, y: numbers, z, xgap: 1, ygap: 1, hoverongaps: false,
          colorscale: [[0, LOW], [1, HIGH]], colorbar: { title: { text: "%" }, thickness: 12, outlinewidth: 0 },
          hovertemplate: "after task %{y}, accuracy on task %{x}: %{z:.2f} %<extra></extra>",
        }],
        layout: {
          xaxis: tasksAxis("accuracy on task", 1, group.tasks, { showgrid: false }), hovermode: "closest",
          yaxis: tasksAxis("after learning task", 1, group.tasks, { autorange: "reversed", showgrid: false }),
        },
      };
    },
    table: matrixTable,
    words: () => `Accuracy matrix of ${state.shown ? name(state.shown) : ""}: rows are tasks learned, columns tasks tested.`,
  },
  forgetting: {
    draw() {
      const traces = chosen().filter((group) => group.history && group.tasks > 1).map((group) => {
        const style = look(group);
        const x = Array.from({ length: group.tasks - 1 }, (_, i) => i + 1);
        const points = x.map((task) => over(runsOf(group), (run) => forgotten(run, task - 1)));
        return {
          type: "scatter", mode: "markers+lines", name: wrapped(name(group)), x, y: points.map((p) => p && p.mean),
          error_y: { type: "data", array: points.map((p) => (p ? p.spread : 0)), thickness: 1, width: 2 },
          line: { color: style.colour, dash: style.dash, width: 1 }, marker: { symbol: style.marker, size: 7 },
          hovertemplate: "%{y:.3f}<extra>%{fullData.name}</extra>",
        };
      });
      return { traces, layout: { xaxis: tasksAxis("task", 1, longest()), yaxis: axis("forgetting") } };
    },
    table() {
      const groups = chosen().filter((group) => group.history);
      const most = Math.max(0, ...groups.map((group) => group.tasks - 1));
      const rows = Array.from({ length: most }, (_, i) => [
        String(i + 1), ...groups.flatMap((group) => pair(over(runsOf(group), (run) => forgotten(run, i)), 3)),
      ]);
      return { head: ["task", ...groups.flatMap((group) => [name(group), plusMinus()])], rows };
    },
    words: () => `What was forgotten of each task by the end. Average forgetting: ${ends("forgetting", 3, "")}.`,
  },
  cost: {
    measure: {
      bytes: { title: "kept between tasks, bytes", words: "the memory kept between tasks", value: (run) => run.bytes },
      seconds: { title: "seconds a run", words: "the time a run takes", value: share },
      cost: {
        title: "cost of a run", words: "what a run costs at that price", value: (run) => (share(run) / 3600) * state.price,
      },
    },
    draw() {
      const { title, value } = this.measure[state.measure];
      const traces = [];
      for (const group of chosen()) {
        const across = over(runsOf(group), value), up = over(runsOf(group), (run) => run.average), style = look(group);
        if (!across || !up) continue;
        traces.push({
          type: "scatter", mode: "markers", name: wrapped(name(group)), x: [across.mean], y: [up.mean], cliponaxis: false,
          error_x: { type: "data", array: [across.spread], thickness: 1 },
          error_y: { type: "data", array: [up.spread], thickness: 1 },
          marker: { color: style.colour, symbol: style.marker, size: 11 },
          hovertemplate: "%{x:.4~s}: %{y:.2f} %<extra>%{fullData.name}</extra>",
        });
      }
      const xaxis = axis(title, { rangemode: "tozero", tickformat: state.measure === "cost" ? "" : "~s" });
      return { traces, layout: { xaxis, yaxis: axis("average accuracy %"), hovermode: "closest" } };
    },
    table() {
      const { title, value } = this.measure[state.measure];
      const rows = chosen().map((group) => [
        name(group), ...pair(over(runsOf(group), value), 4), ...pair(over(runsOf(group), (run) => run.average)),
      ]);
      return { head: ["method", title, plusMinus(), "average accuracy %", plusMinus()], rows };
    },
    words: () => `Average accuracy against ${CHARTS.cost.measure[state.measure].words}.`,
  },
};
/** From blue to orange through grey, dark enough on light and light enough on dark. */
function ramp(part) {
  const [from, to] = part < 0.5 ? [[0, 114, 178], [128, 128, 128]] : [[128, 128, 128], [213, 94, 0]];
  const way = part < 0.5 ? part * 2 : part * 2 - 1;
  return "#" + from.map((c, k) => Math.round(c + (to[k] - c) * way).toString(16).padStart(2, "0")).join("");
}
const pair = (point, digits = 2) =>
  point ? [shown(point.mean, digits), point.size > 1 ? shown(point.spread, digits) : "–"] : ["–", "–"];
const ends = (field, digits, unit) =>
  chosen().map((group) => {
    const end = over(runsOf(group), (run) => run[field]);
    return `${name(group)} ${end ? end.mean.toFixed(digits) + unit : "not measured"}`;
  }).join("; ") || "nothing is chosen";
function matrixTable() {
  const group = state.shown;
  if (!group) return { head: [], rows: [] };
  const numbers = Array.from({ length: group.tasks }, (_, k) => k);
  const rows = numbers.map((t) => [
    `after task ${t + 1}`, ...numbers.map((i) => shown(over(runsOf(group), (run) => onTask(run, t, i))?.mean)),
  ]);
  return { head: ["accuracy % on task", ...numbers.map((i) => String(i + 1))], rows };
}
