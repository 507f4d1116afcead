import { h } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

import { clock, date, digits, kindOf, Mark } from "./model";

// Charts over time. uPlot draws them on a canvas, in the colours of the theme.

export interface Line {
  label: string;
  values: (number | null)[];
  color: string; // name of a CSS variable
  dash?: number[];
  now?: string; // what the legend says where the cursor is nowhere; absent = the last number
}

interface Props {
  title: string;
  times: number[];
  lines: Line[];
  stacked?: boolean;
  counts?: boolean; // a value is a count that was so since the one before; the axis begins at 0
  marks: Mark[];
  theme: string;
  format?: (x: number) => string;
}

// sync joins the cursors of all charts.
const sync = uPlot.sync("time");

// css returns the value of a variable of the theme.
function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// stack returns the sums of the lines up to each, the last one first, so that areas lie behind each
// other.
function stack(lines: Line[]): (number | null)[][] {
  const sums: (number | null)[][] = [];
  const sum: number[] = [];
  for (const line of lines) {
    sums.unshift(line.values.map((x, i) => (x === null ? null : (sum[i] = (sum[i] ?? 0) + x))));
  }
  return sums;
}

// dataOf returns what uPlot draws.
function dataOf(p: Props): uPlot.AlignedData {
  const rows = p.stacked ? stack(p.lines) : p.lines.map((l) => l.values);
  return [p.times, ...rows] as uPlot.AlignedData;
}

// drawMarks draws losses, joins, changes and pauses into a chart, each as a line with a glyph above
// it; one that would touch the line before is left out.
function drawMarks(u: uPlot, marks: Mark[]) {
  const { ctx, bbox } = u;
  const [from, to] = [u.scales.x.min ?? 0, u.scales.x.max ?? 0];
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.font = `${12 * ratio}px sans-serif`;
  ctx.textAlign = "center";
  let last = -1e9;
  for (const m of marks) {
    if (!["loss", "join", "change", "pause"].includes(m.kind) || m.time < from || m.time > to)
      continue;
    const x = Math.round(u.valToPos(m.time, "x", true));
    if (x - last < 3 * ratio) continue;
    last = x;
    const color = css(m.kind === "loss" ? "--bad" : m.kind === "change" ? "--accent" : "--muted");
    ctx.strokeStyle = ctx.fillStyle = color;
    ctx.setLineDash(m.kind === "loss" ? [] : [3 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(kindOf(m.kind).glyph, x, bbox.top - 3 * ratio);
  }
  ctx.restore();
}

// timesAround returns the first and the last time of a chart: of one with a single point, which has
// no span of its own, half a minute before and after it.
function timesAround(u: uPlot, low: number, high: number): [number, number] {
  const times = u.data[0];
  return times.length === 1 ? [times[0] - 30, times[0] + 30] : [low, high];
}

// optionsOf returns what uPlot is told of a chart.
function optionsOf(p: Props, width: number, marks: () => Mark[]): uPlot.Options {
  const format = p.format ?? digits;
  const axis = {
    stroke: css("--text"),
    grid: { stroke: css("--grid"), width: 1 },
    ticks: { stroke: css("--grid") },
  };
  const lines = p.stacked ? p.lines.slice().reverse() : p.lines;
  const end = p.times[p.times.length - 1];
  return {
    width,
    height,
    padding: [18, 24, 0, 0],
    cursor: { sync: { key: sync.key }, drag: { x: true, y: false } },
    legend: { live: true },
    scales: {
      x: { time: true, range: timesAround },
      y: { range: (_u, low, high) => scaleOf(low, high, !!p.stacked || !!p.counts) },
    },
    bands: p.stacked
      ? lines.slice(1).map((_line, i): uPlot.Band => ({ series: [i + 1, i + 2] }))
      : [],
    axes: [
      {
        ...axis,
        values: (_u, list, _i, _space, apart) => timesOf(list, apart),
        space: 70,
        size: 30,
      },
      {
        ...axis,
        size: (_u, labels) => roomFor(labels),
        incrs: p.counts ? whole : undefined,
        values: (_u, list) => list.map((x) => (x === null ? "" : format(x))),
      },
    ],
    series: [
      {
        label: "time",
        value: (_u, x) => clock(x || end, end),
      },
      ...lines.map((line, i) => ({
        label: line.label,
        stroke: css(line.color),
        fill: p.stacked ? css(line.color) + "77" : undefined,
        width: p.stacked ? 1 : 1.5,
        dash: p.stacked ? undefined : line.dash,
        paths: p.counts ? uPlot.paths.stepped!({ align: -1 }) : undefined,
        spanGaps: true,
        points: { show: p.times.length < 30, size: 5 },
        value: (_u: uPlot, _x: number, _k: number, at: number | null) => {
          if (at === null && line.now) return line.now;
          const x = at === null ? last(line.values) : line.values[at];
          return x === null || x === undefined ? "–" : format(x);
        },
      })),
    ],
    hooks: { draw: [(u) => drawMarks(u, marks())] },
  };
}

// isZoomed says whether somebody has chosen a part of the times of a plot. A plot that is not drawn
// yet has no scale, which is null then.
function isZoomed(u: uPlot): boolean {
  const times = u.data[0];
  const min = u.scales.x.min ?? null;
  const max = u.scales.x.max ?? null;
  if (times.length < 2 || min === null || max === null) return false;
  return min > times[0] || max < times[times.length - 1];
}

// timesOf writes the times of an axis, which are so many seconds apart: midnights as dates, seconds
// where it is about less than a minute, and their parts where it is about less than a second.
function timesOf(list: number[], apart: number): string[] {
  return list.map((t) => {
    const time = clock(t, t);
    if (apart >= 86400 || (apart >= 60 && time.startsWith("00:00"))) return date(t);
    if (apart < 1) return time + (t % 1).toFixed(apart < 0.1 ? 3 : 1).slice(1);
    return apart >= 60 ? time.slice(0, 5) : time;
  });
}

// roomFor returns how wide the axis of values is, so that the longest of its labels is whole: a
// character has up to 8 pixels, and what is beside them 16. There may be no labels yet.
function roomFor(labels: string[] | null): number {
  return Math.max(64, 16 + 8 * Math.max(0, ...(labels ?? []).map((text) => text.length)));
}

// whole are the distances of the ticks of an axis of counts.
const whole = [...Array(12).keys()].flatMap((k) => [1, 2, 5].map((x) => x * 10 ** k));

// height is how high a chart is, without its legend.
const height = 190;

// last returns the last number of a list.
function last(list: (number | null)[]): number | null {
  for (let i = list.length - 1; i >= 0; i--) if (list[i] !== null) return list[i];
  return null;
}

// scaleOf returns from where to where the axis of a chart goes.
function scaleOf(low: number | null, high: number | null, fromZero: boolean): [number, number] {
  if (low === null || high === null) return [0, 1];
  if (fromZero || (low >= 0 && low < high / 3)) low = 0;
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low === 0 ? 0 : low - room, high + room];
}

// Chart is a chart with its title. Left and right move its cursor by a point, and Home and End to
// its ends, if it has the focus.
export function Chart(p: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const zoom = useRef<[number, number] | null>(null); // of the plot before; null = it had none
  const shown = useRef(p);
  shown.current = p;
  const labels = p.lines.map((l) => l.label).join("|");
  useEffect(() => {
    const element = box.current!;
    const make = () => {
      plot.current?.destroy();
      const width = Math.max(element.clientWidth, 200);
      const u = new uPlot(
        optionsOf(shown.current, width, () => shown.current.marks),
        dataOf(shown.current),
        element,
      );
      plot.current = u;
      if (zoom.current) u.setScale("x", { min: zoom.current[0], max: zoom.current[1] });
    };
    make();
    const resize = new ResizeObserver(() => {
      const width = Math.max(element.clientWidth, 200);
      if (plot.current && plot.current.width !== width)
        plot.current.setSize({ width, height });
    });
    resize.observe(element);
    return () => {
      resize.disconnect();
      const u = plot.current;
      zoom.current = u && isZoomed(u) ? [u.scales.x.min!, u.scales.x.max!] : null;
      plot.current?.destroy();
      plot.current = null;
    };
  }, [labels, p.theme, p.times.length < 30]);
  // The series of an existing plot read the newest values by what they closed over, so a plot whose
  // values have changed is told of them.
  useEffect(() => {
    const u = plot.current;
    if (!u) return;
    const options = optionsOf(p, u.width, () => shown.current.marks);
    options.series.forEach((s, i) => {
      u.series[i].value = s.value as uPlot.Series["value"];
    });
    const zoomed = isZoomed(u);
    u.setData(dataOf(p), !zoomed);
    if (zoomed) {
      u.redraw();
      u.setLegend({ idxs: u.series.map(() => u.cursor.idx ?? null) }, false);
    }
  }, [p.times, p.lines.map((l) => l.values)[0], p.marks.length]);
  const onKeyDown = (e: KeyboardEvent) => {
    const u = plot.current;
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[e.key];
    if (!u || step === undefined) return;
    e.preventDefault();
    const n = p.times.length - 1;
    const at = Math.min(Math.max((u.cursor.idx ?? n) + step, 0), n);
    u.setCursor({ left: u.valToPos(p.times[at], "x"), top: 20 });
  };
  return (
    <section class="card">
      <h2>{p.title}</h2>
      <div
        class="plot"
        ref={box}
        tabIndex={0}
        role="group"
        onKeyDown={onKeyDown}
        aria-label={`${p.title}: a chart; left and right move through its points`}
      />
    </section>
  );
}
