"""The page's looks: one card per section, light and dark, narrow screens and paper."""

STYLESHEET = """
:root {
  color-scheme: light dark;
  --ink: #1f2328; --muted: #59636e; --line: #d1d9e0; --paper: #ffffff; --ground: #f6f8fa;
  --accent: #0072b2; --heat: 0 114 178; --mark: #fff3cd;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --ink: #e6edf3; --muted: #9ea7b3; --line: #3d444d; --paper: #161b22; --ground: #0d1117;
    --accent: #56b4e9; --heat: 40 130 190; --mark: #4a3a08;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 68rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
}
h1 { margin: 0 0 .25rem; font-size: 1.9rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 0 0 .75rem; font-size: 1.25rem; }
h3 { margin: 1.5rem 0 .5rem; font-size: 1rem; color: var(--muted); }
p { margin: .25rem 0 .75rem; }
section {
  margin-top: 1.25rem; padding: 1.25rem; background: var(--paper); border: 1px solid var(--line); border-radius: .6rem;
}
.muted, caption, figcaption, footer { color: var(--muted); font-size: .875rem; }
footer { margin-top: 1.5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.25rem; margin: 0; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { padding-bottom: .4rem; text-align: left; }
.grid caption { font-weight: 600; }
.scroll + .scroll { margin-top: .75rem; }
.matrices .scroll { margin-top: 0; }
th { font-weight: 600; }
.grid { width: 100%; font-size: .875rem; }
.grid th, .grid td { padding: .35rem .55rem; border-bottom: 1px solid var(--line); text-align: left; }
.grid thead th { color: var(--muted); vertical-align: bottom; }
.grid .number { text-align: right; }
.grid td { white-space: nowrap; }
.grid tr.differs > * { background: var(--mark); }
.grid tr.differs th::before { content: "≠ "; }
figure { margin: 0; }
figure svg { display: block; width: 100%; min-width: 44rem; height: auto; }
.matrices { display: flex; flex-wrap: wrap; gap: 1.25rem 2rem; }
.matrices > * { max-width: 100%; }
.heat { font-size: .8rem; }
.heat.many { font-size: .66rem; }
.heat caption { color: var(--ink); font-size: .9rem; font-weight: 600; }
.heat th { padding: .25rem .4rem; color: var(--muted); font-weight: 400; white-space: nowrap; }
.heat td {
  padding: .3rem .4rem; min-width: 2.2em; border: 1px solid var(--paper); text-align: center;
  background: rgb(var(--heat) / calc(var(--level) * .62)); print-color-adjust: exact; -webkit-print-color-adjust: exact;
}
.heat.many td, .heat.many th { padding: .15rem .3rem; }
.heat td.none { color: var(--muted); background: none; }
pre {
  margin: 0; padding: .6rem .9rem; width: max-content; min-width: 100%;
  background: var(--ground); border: 1px solid var(--line); border-radius: .4rem;
  font: .85rem/1.5 ui-monospace, "Liberation Mono", monospace;
}
@media (max-width: 40rem) {
  body { padding: 1rem .6rem 2rem; }
  section { padding: .9rem; }
  h1 { font-size: 1.5rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .5rem; }
}
@media print {
  body { max-width: none; padding: 0; background: none; font-size: 10pt; }
  section { padding: 0; border: 0; }
  h2, h3, caption, p { break-after: avoid; }
  figure, .matrices > *, pre, tr { break-inside: avoid; }
  .scroll { overflow: visible; }
  pre { width: auto; white-space: pre-wrap; }
  .grid { font-size: 7.5pt; }
  .grid th, .grid td { padding: .2rem .35rem; }
  .heat { font-size: 7pt; }
  .heat.many { font-size: 5pt; }
  .heat.many td, .heat.many th { padding: .1rem .15rem; }
  figure svg { min-width: 0; }
}
"""
