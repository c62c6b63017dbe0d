// What all parts share. They are joined, in the order charts.py gives, into one function: nothing of it is global.
// Everything from a results file reaches the page as text: textContent here, entities in Plotly's labels.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a6761d", "#6f6fd6", "#7f7f7f"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const MARKERS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x"];
const FIRST = 8; // groups drawn at first: more cannot be told apart
const LOW = "#eef4f8", HIGH = "#0072b2";
const at = (id) => document.getElementById(id);
let data, state;
