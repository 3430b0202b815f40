// Small line charts and bars, drawn as SVG.

const CHART = { width: 340, height: 170, left: 44, right: 10, top: 10, bottom: 22 };

/** Least and largest of a list that may have gaps; a flat list gets some room. */
function extent(values) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  if (!known.length) return [0, 1];
  const least = Math.min(...known);
  const most = Math.max(...known);
  return least === most ? [least - Math.abs(least || 1) * 0.1, most + Math.abs(most || 1) * 0.1] : [least, most];
}

/** Lines over steps, with a reading of all lines at the pointer. `lines`: [[name, values], ...]. */
function lineChart(title, steps, lines) {
  const { width, height, left, right, top, bottom } = CHART;
  const [first, last] = extent(steps);
  const [least, most] = extent(lines.flatMap(([, values]) => values));
  const x = (step) => left + ((step - first) / (last - first)) * (width - left - right);
  const y = (value) => top + ((most / 2 - value / 2) / (most / 2 - least / 2)) * (height - top - bottom);

  const cursor = svg("line", { class: "cursor", y1: top, y2: height - bottom, x1: -9, x2: -9 });
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": described(title, steps, lines) },
    ...[least, least / 2 + most / 2, most].flatMap((value) => [
      svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: y(value) + 3.5, "text-anchor": "end", text: short(Number(value.toPrecision(3))) }),
    ]),
    svg("text", { x: left, y: height - 6, text: short(first) }),
    svg("text", { x: width - right, y: height - 6, "text-anchor": "end", text: `step ${short(last)}` }),
    ...lines.flatMap(([, values], index) => drawnLine(steps, values, x, y, `s${index % 6}`)),
    cursor,
  );
  const readings = lines.map(() => el("span", { class: "reading" }));
  const legend = el(
    "figcaption",
    {},
    el("strong", { text: title }),
    ...lines.map(([name], index) => el("span", { class: `key s${index % 6}` }, el("span", { text: name }), readings[index])),
  );
  const read = (event) => {
    const box = drawing.getBoundingClientRect();
    const wanted = first + (((event.clientX - box.left) / box.width) * width - left) / (width - left - right) * (last - first);
    const nearest = steps.reduce((best, step, index) => (Math.abs(step - wanted) < Math.abs(steps[best] - wanted) ? index : best), 0);
    cursor.setAttribute("x1", x(steps[nearest]));
    cursor.setAttribute("x2", x(steps[nearest]));
    lines.forEach(([, values], index) => (readings[index].textContent = short(values[nearest])));
  };
  const forget = () => {
    cursor.setAttribute("x1", -9);
    cursor.setAttribute("x2", -9);
    lines.forEach(([, values], index) => (readings[index].textContent = short(lastKnown(values))));
  };
  drawing.addEventListener("pointermove", read);
  drawing.addEventListener("pointerleave", forget);
  forget();
  return el("figure", { class: "chart" }, legend, drawing);
}

/** A line through the values that are there, with dots where they are so few that it would not be seen. */
function drawnLine(steps, values, x, y, series) {
  const points = steps.map((step, at) => [step, values[at]]).filter(([, value]) => Number.isFinite(value));
  const path = points.map(([step, value], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const dots = points.length > 12 ? [] : points;
  return [
    svg("path", { class: `line ${series}`, d: path }),
    ...dots.map(([step, value]) => svg("circle", { class: `dot ${series}`, cx: x(step), cy: y(value), r: 2 })),
  ];
}

const lastKnown = (values) => values.findLast((value) => value !== null) ?? null;

function described(title, steps, lines) {
  const ends = lines.map(([name, values]) => `${name} ends at ${short(lastKnown(values))}`);
  return `${title} over ${count(steps.length, "point")}: ${ends.join(", ")}`;
}

/** Horizontal bars: [[name, value, text], ...], all to one scale. */
function bars(entries) {
  const most = Math.max(...entries.map(([, value]) => value), Number.MIN_VALUE);
  const rows = entries.map(([name, value, text]) => {
    const fill = el("span", { class: "fill" });
    fill.style.setProperty("--share", value / most);
    return el("div", { class: "bar-row" }, el("span", { text: name }), el("span", { class: "track" }, fill), el("span", { class: "number", text }));
  });
  return el("div", { class: "bars" }, ...rows);
}
