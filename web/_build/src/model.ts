// What the page shows, as package watch writes it, and how updates go into it. Times are in seconds
// since 1970; 0 = not known. A step is a commit; optimizer_steps is how many optimizer steps there
// were by then, absent = as many.

export interface Series {
  name: string;
  worker: number; // whose reports these are; -1 = not those of one worker
  points: number; // measured, of which those below are the least and greatest
  columns: string[];
  times: number[];
  values: (number | null)[][]; // by column, one for each of the times; null = none
}

export interface State {
  word: string;
  text: string;
  over: boolean; // nothing more will come
  at: number; // since when, or when it was heard last
}

export interface Mark {
  time: number;
  step: number;
  optimizer_steps?: number;
  step_unknown?: boolean;
  kind: string;
  title: string;
  text: string; // the reason
  change?: string; // the name of the change that it is about
}

export interface Band {
  low: number;
  mid: number;
  high: number;
}

export interface Change {
  name: string;
  what: string;
  phase: string;
  policy?: string;
  who?: string;
  step: number;
  optimizer_steps?: number;
  because?: string;
  alternatives?: string[];
  predicted?: Band; // by which factor the goodput was to grow
  measured?: number; // by which factor it has grown; absent or 0 = not measured
  steps?: number; // that were measured
  why?: string; // it ended as it did; absent = by what was measured
  entered: number;
  ended: number; // 0 = on trial, or not known
  inside?: boolean; // what was measured is in the band; absent = one of the two is not known
}

export interface Coverage {
  policy: string; // "" = what persons have asked for
  inside: number;
  of: number;
}

export interface Host {
  name: string;
  ranks: number[];
}

export interface Machine {
  host: string;
  levels: string;
  usage: Record<string, number>;
}

export interface Row {
  step: number;
  optimizer_steps?: number;
  round?: number; // optimizer steps of a commit; absent = 1
  generation: number;
  size: number;
  slack?: number[]; // by rank: seconds a step that the worker waits for the slowest one
  cable?: number; // bytes a second
  machines?: Machine[];
}

export interface Worker {
  worker: number;
  host: string;
  rank: number; // -1 = it is no member
  running: boolean;
  waiting?: boolean;
  awaited?: { call: string; unusual?: boolean }; // unusual: for longer than earlier steps explain
  ended?: string;
  metrics?: Record<string, number | string>;
}

export interface Live {
  state: string;
  head: string;
  generation: number;
  size: number;
  want: number;
  steps: number;
  optimizer_steps?: number;
  elastic: boolean;
  setting?: { batch?: number; sync?: string; round?: number };
  levers?: { sync?: string; round?: number; auto?: boolean };
  slow?: string[];
  workers: Worker[];
}

export interface WhyNot {
  policy?: string; // absent = a person asked for what was refused
  why: string;
  first: number; // commits at the first of these decisions
  last: number;
  times: number; // number of decisions
}

// Both a view and an update have these.
export interface Common {
  id: string;
  made: number;
  state: State;
  notes: string[];
  series: Series[];
  marks: Mark[];
  changes: Change[];
  coverage: Coverage[];
  newest?: Row;
  hosts: Host[];
  need?: string; // what somebody must do before the job goes on, or has its workers
  live?: Live; // absent = the job does not run, or its launcher does not answer
  why_not: WhyNot[];
  ended: { rank: number; how: string }[]; // rank: the number of a worker
}

export interface View extends Common {
  job: string;
  dir: string;
  command: string[] | null;
  version: string;
  started: number;
  left_out: number; // marks that only the ledger has
}

// mostPoints is how many points a series has before the page asks for a view again, in which
// neighbours are put together.
export const mostPoints = 4000;

// apply returns the view with an update in it. Series that are unchanged stay the same objects, so
// that their charts are not drawn anew.
export function apply(view: View, u: Common): View {
  const series = view.series.slice();
  for (const more of u.series) {
    const i = series.findIndex((s) => s.name === more.name);
    if (i < 0) {
      series.push(more);
      continue;
    }
    const old = series[i];
    series[i] = {
      ...old,
      worker: more.worker,
      points: old.points + more.points,
      times: old.times.concat(more.times),
      values: old.values.map((v, k) => v.concat(more.values[k])),
    };
  }
  const changes = view.changes.slice();
  for (const c of u.changes) {
    const i = changes.findIndex((x) => x.name === c.name);
    if (i < 0) changes.push(c);
    else changes[i] = c;
  }
  return {
    ...view,
    ...u,
    series,
    changes,
    need: u.need,
    live: u.live,
    newest: u.newest ?? view.newest,
    marks: u.marks.length ? view.marks.concat(u.marks) : view.marks,
  };
}

// isLong reports whether a series of the view has become longer than a page should draw.
export function isLong(view: View): boolean {
  return view.series.some((s) => s.times.length > mostPoints);
}

// column returns a column of a series by its names, or nothing where it has no numbers.
export function column(view: View, series: string, name: string): (number | null)[] | undefined {
  const s = view.series.find((x) => x.name === series);
  const v = s?.values[s.columns.indexOf(name)];
  return v?.some((x) => x !== null) ? v : undefined;
}

// slackOf returns by rank how long a worker waits in a step for the slowest one: nothing for the
// only one, and nothing where the newest row is of other members than there are now.
export function slackOf(view: View): number[] {
  const row = view.newest;
  if (!row?.slack || row.size < 2) return [];
  return view.live && view.live.generation !== row.generation ? [] : row.slack;
}

// newest returns the last number of a list that is one.
export function newest(list: (number | null)[] | undefined): number | undefined {
  for (let i = (list?.length ?? 0) - 1; i >= 0; i--) {
    const x = list![i];
    if (x !== null) return x;
  }
  return undefined;
}

// digits writes a whole number as it is, others with four digits, or all before the point, and a
// dash where there is none.
export function digits(x: number | null | undefined): string {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e15) return String(x);
  if (size >= 1e15 || (size > 0 && size < 1e-4)) return Number(x.toPrecision(4)).toExponential();
  return String(size >= 1e3 ? Math.round(x) : Number(x.toPrecision(4)));
}

// duration writes seconds with a unit that fits, and a dash where there are none.
export function duration(s: number | null | undefined): string {
  if (s === null || s === undefined) return "–";
  if (s < 1e-3) return digits(s * 1e6) + " µs";
  if (s < 1) return digits(s * 1e3) + " ms";
  if (s < 120) return digits(s) + " s";
  const m = Math.round(s / 60);
  if (m < 120) return m + " min";
  const h = Math.floor(m / 60);
  return h < 48 ? `${h} h ${m % 60} min` : `${Math.floor(h / 24)} d ${h % 24} h`;
}

// bytes writes a number of bytes.
export function bytes(x: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  for (; x >= 1000 && i < units.length - 1; i++) x /= 1000;
  return Number(x.toPrecision(3)) + " " + units[i];
}

// date writes the day of a time in seconds since 1970.
export function date(seconds: number): string {
  return new Date(seconds * 1e3).toLocaleDateString("en", { month: "short", day: "numeric" });
}

// clock writes a time in seconds since 1970, with the date where that was on another day than now,
// and a dash for 0.
export function clock(seconds: number, now = Date.now() / 1e3): string {
  if (!seconds) return "–";
  const t = new Date(seconds * 1e3);
  const time = t.toLocaleTimeString("en", { hourCycle: "h23" });
  if (t.toDateString() === new Date(now * 1e3).toDateString()) return time;
  const year = t.getFullYear() === new Date().getFullYear() ? "" : t.getFullYear() + " ";
  return year + date(seconds) + " " + time;
}

// Glyphs and words of the kinds of marks: no kind is told by its colour alone.
export const kinds: Record<string, { glyph: string; word: string }> = {
  loss: { glyph: "▼", word: "lost" },
  join: { glyph: "▲", word: "joined" },
  leave: { glyph: "▽", word: "left" },
  generation: { glyph: "△", word: "generation" },
  pause: { glyph: "‖", word: "pause" },
  resume: { glyph: "▷", word: "resume" },
  park: { glyph: "▤", word: "park" },
  stop: { glyph: "■", word: "stop" },
  mesh: { glyph: "▦", word: "mesh" },
  wait: { glyph: "◔", word: "wait" },
  change: { glyph: "◆", word: "change" },
  route: { glyph: "◇", word: "route" },
  policy: { glyph: "●", word: "policy" },
  other: { glyph: "○", word: "other" },
};

// kindOf returns the glyph and the word of a kind; one of a newer version is "other".
export function kindOf(kind: string): { glyph: string; word: string } {
  return Object.hasOwn(kinds, kind) ? kinds[kind] : kinds.other;
}
