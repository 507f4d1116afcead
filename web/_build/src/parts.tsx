import { h, Fragment } from "preact";
import { useState } from "preact/hooks";

import {
  Change,
  clock,
  column,
  digits,
  duration,
  kindOf,
  kinds,
  Mark,
  newest,
  View,
} from "./model";

// The parts of the page besides charts. Preact escapes all texts.

// Facts says how the run is, in one line of numbers.
export function Facts({ view }: { view: View }) {
  const live = view.live;
  const list: [string, string][] = [];
  const commits = live?.elastic ? live.steps : view.newest?.step;
  const stated = live?.levers; // by the program, where the setting has nothing else
  const round = live?.setting?.round || stated?.round || 1;
  const made = live ? live.optimizer_steps : view.newest?.optimizer_steps;
  const rounds = !!made || (!live && (view.newest?.round ?? 1) > 1);
  if (made) list.push(["step", String(made)]);
  if (commits !== undefined) list.push([rounds ? "commits" : "step", String(commits)]);
  if (live) {
    list.push([
      "workers",
      live.generation ? `${live.size} of ${live.want}` : `${live.want} wanted`,
    ]);
    list.push(["generation", String(live.generation)]);
  } else if (view.newest) list.push(["workers", String(view.newest.size)]);
  const batch = live?.setting?.batch || newest(column(view, "steps", "batch"));
  if (batch) list.push(["batch", String(batch)]);
  const sync = live?.setting?.sync || stated?.sync;
  if (sync) list.push(["synchronises by", sync + (stated?.auto ? " (auto)" : "")]);
  if (round > 1) list.push(["a round is", round + " steps"]);
  const seconds = newest(column(view, "steps", "median"));
  if (seconds !== undefined) list.push(["step takes", duration(seconds)]);
  const rate = newest(column(view, "steps", "rate"));
  if (rate !== undefined) list.push(["samples/s", digits(rate)]);
  if (view.started) {
    const end = view.state.over && view.state.at ? view.state.at : view.made;
    list.push(["runs for", duration(Math.max(end - view.started, 0))]);
  }
  return (
    <dl class="facts">
      {list.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

interface Moment {
  step: number;
  optimizer_steps?: number;
  step_unknown?: boolean;
}

// Steps is the number of optimizer steps when something was, and that of commits where it differs.
function Steps({ at }: { at: Moment }) {
  if (at.step_unknown) return <>–</>;
  return at.optimizer_steps ? (
    <>
      {at.optimizer_steps} <span class="muted">(commit {at.step})</span>
    </>
  ) : (
    <>{at.step}</>
  );
}

// Notes say what the job needs, who is waited for, who is slow, and what is missing.
export function Notes({ view }: { view: View }) {
  const stalls = (view.live?.workers ?? [])
    .filter((w) => w.awaited?.unusual)
    .slice(0, 1) // one says enough
    .map(
      (w) =>
        `worker ${w.worker}: others wait for it in ${w.awaited!.call}; ` +
        `shoal explain ${view.job} says what can be done`,
    );
  const list = [view.need ?? "", ...stalls, ...(view.live?.slow ?? []), ...view.notes].filter(
    Boolean,
  );
  if (!list.length) return null;
  return (
    <section class="card notes" aria-label="notes">
      <h2>Notes</h2>
      <ul>
        {list.map((n) => (
          <li key={n}>{n}</li>
        ))}
      </ul>
    </section>
  );
}

// mostShown is how many marks the list has.
const mostShown = 200;

// Timeline is what happened: a strip of glyphs over time, and a list, the newest first.
export function Timeline({ view }: { view: View }) {
  const [text, setText] = useState("");
  const marks = view.marks.filter((m) =>
    (m.title + " " + m.text).toLowerCase().includes(text.toLowerCase()),
  );
  const shown = marks.slice(-mostShown).reverse();
  return (
    <section class="card wide" id="timeline" tabIndex={-1}>
      <h2>What happened</h2>
      <Strip marks={marks} view={view} />
      <Legend marks={marks} />
      <label class="filter">
        Only with{" "}
        <input
          type="search"
          value={text}
          onInput={(e) => setText((e.target as HTMLInputElement).value)}
          placeholder="lost, change 3, …"
        />
      </label>
      <div class="scroll" tabIndex={0} role="region" aria-label="what happened, the newest first">
        <table class="folds">
          <thead>
            <tr>
              <th>time</th>
              <th>step</th>
              <th>what</th>
              <th>why</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((m) => (
              <tr key={m.time + m.title} class={"mark-" + m.kind}>
                <td class="num">{clock(m.time, view.made)}</td>
                <td class="num">
                  <span class="fold">step </span>
                  <Steps at={m} />
                </td>
                <td class="whole">
                  <span class="glyph" aria-hidden="true">
                    {kindOf(m.kind).glyph}
                  </span>{" "}
                  {m.title}
                </td>
                <td class="whole">{m.text}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {(marks.length > mostShown || view.left_out > 0) && (
        <p class="muted">
          {shown.length} of {marks.length + view.left_out} are shown; the ledger has all.
        </p>
      )}
    </section>
  );
}

// Strip shows marks over time, losses in the upper row, changes in the middle one, the rest below;
// of several at one place the first.
function Strip({ marks, view }: { marks: Mark[]; view: View }) {
  if (!marks.length) return null;
  const from = view.started || marks[0].time;
  const to = Math.max(
    view.state.over && view.state.at ? view.state.at : view.made,
    marks[marks.length - 1].time,
    from + 1,
  );
  const row = (m: Mark) => (m.kind === "loss" ? 0 : m.change ? 1 : 2);
  const seen = new Set<string>();
  const some = marks.filter((m) => {
    const place = row(m) + ":" + Math.round(((m.time - from) / (to - from)) * 300);
    return !seen.has(place) && seen.add(place);
  });
  return (
    <div
      class="strip"
      role="img"
      aria-label={`${marks.length} events from ${clock(from)} to ${clock(to)}`}
    >
      <svg viewBox="0 0 1000 66" preserveAspectRatio="none" aria-hidden="true">
        {[11, 33, 55].map((y) => (
          <line key={y} x1="0" x2="1000" y1={y} y2={y} class="grid" />
        ))}
      </svg>
      {some.map((m) => (
        <span
          key={m.time + m.title}
          class={`mark row-${row(m)} mark-${m.kind}`}
          title={`${clock(m.time)} ${m.title}`}
          style={{ left: `${Math.min(Math.max((m.time - from) / (to - from), 0), 1) * 100}%` }}
        >
          {kindOf(m.kind).glyph}
        </span>
      ))}
      <span class="end left">{clock(from, view.made)}</span>
      <span class="end right">{clock(to, view.made)}</span>
    </div>
  );
}

// Legend says what the glyphs of marks mean.
function Legend({ marks }: { marks: Mark[] }) {
  const there = new Set(marks.map((m) => kindOf(m.kind)));
  return (
    <p class="legend muted">
      {Object.entries(kinds)
        .filter(([, k]) => there.has(k))
        .map(([name, k]) => (
          <span key={name} class={"mark-" + name}>
            <span class="glyph">{k.glyph}</span>
            {k.word}
          </span>
        ))}
    </p>
  );
}

// Ledger lists the changes with what was promised, a band, and what came, a dot.
export function Ledger({ view }: { view: View }) {
  const [routes, setRoutes] = useState(false);
  const all = view.changes.filter((c) => routes || c.policy !== "routes");
  const shown = all.slice(-100).reverse();
  const numbers = all
    .flatMap((c) => [c.predicted?.low, c.predicted?.high, c.measured])
    .filter((x): x is number => !!x && x > 0);
  const low = Math.min(0.8, ...numbers.map((x) => Math.max(x, 0.2)));
  const high = Math.max(1.25, ...numbers.map((x) => Math.min(x, 5)));
  return (
    <section class="card wide" id="ledger" tabIndex={-1}>
      <h2>Changes: promised and measured</h2>
      {view.changes.length > 0 && <Coverages view={view} />}
      {view.changes.some((c) => c.policy === "routes") && (
        <label class="filter">
          <input type="checkbox" checked={routes} onChange={() => setRoutes(!routes)} /> routes of
          all-reduces too
        </label>
      )}
      {shown.length === 0 ? (
        <p class="muted">Nothing was changed{view.changes.length > 0 && " but routes"}.</p>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="changes, the newest first">
          <table class="folds">
            <thead>
              <tr>
                <th>change</th>
                <th>what, by whom, why</th>
                <th>factor of goodput: band promised, dot measured, line 1</th>
                <th>end</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((c) => (
                <tr key={c.name}>
                  <td class="num">
                    <span class="fold">change </span>
                    {c.name} <span class="muted step">
                      step <Steps at={c} />
                    </span>
                  </td>
                  <td class="whole">
                    <strong>{c.what}</strong>, by {c.policy || c.who || "–"}
                    {c.because && <div class="muted">{c.because}</div>}
                    {!!c.alternatives?.length && (
                      <details>
                        <summary>instead of</summary>
                        {c.alternatives.map((a) => (
                          <div key={a}>{a}</div>
                        ))}
                      </details>
                    )}
                  </td>
                  <td class="whole">
                    <BandAndDot change={c} low={low} high={high} />
                  </td>
                  <td class="whole">
                    {c.phase === "entered" ? "on trial" : c.phase}
                    {c.why && <div class="muted">{c.why}</div>}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {all.length > shown.length && (
        <p class="muted">
          {shown.length} of {all.length} are shown; the ledger has all.
        </p>
      )}
      <WhyNots view={view} />
    </section>
  );
}

// Coverages says how often bands held what came.
function Coverages({ view }: { view: View }) {
  if (!view.coverage.length)
    return <p class="muted">Nothing was both predicted and measured yet.</p>;
  return (
    <>
      <p class="muted">
        How often the band held what was measured, which it is meant to do in 80 of 100 cases:
      </p>
      <ul class="coverage">
        {view.coverage.map((c) => (
          <li key={c.policy} class="use">
            <strong>{c.policy || "persons"}</strong>
            <meter min={0} max={1} value={c.inside / c.of} aria-hidden="true" />
            <span>
              {c.inside} of {c.of}
            </span>
          </li>
        ))}
      </ul>
    </>
  );
}

// BandAndDot draws on a logarithmic axis what was promised of a change and what came of it.
function BandAndDot({ change: c, low, high }: { change: Change; low: number; high: number }) {
  const x = (f: number) =>
    4 +
    (192 * (Math.log(Math.min(Math.max(f, low), high)) - Math.log(low))) /
      (Math.log(high) - Math.log(low));
  const verdict = c.inside === undefined ? "" : c.inside ? "as promised" : "not as promised";
  const p = c.predicted;
  const texts = [
    p ? `promised ${digits(p.mid)}× (${digits(p.low)}–${digits(p.high)})` : "nothing promised",
    c.measured ? `measured ${digits(c.measured)}×` : "not measured",
    verdict,
  ].filter(Boolean);
  return (
    <>
      <svg class="band" viewBox="0 0 200 22" role="img" aria-label={texts.join(", ")}>
        <line x1={x(1)} x2={x(1)} y1="1" y2="21" class="one" />
        {c.predicted && (
          <>
            <rect
              x={x(c.predicted.low)}
              width={Math.max(x(c.predicted.high) - x(c.predicted.low), 1)}
              y="7"
              height="8"
              class="promised"
            />
            <line x1={x(c.predicted.mid)} x2={x(c.predicted.mid)} y1="5" y2="17" class="mid" />
          </>
        )}
        {!!c.measured && (
          <circle
            cx={x(c.measured)}
            cy="11"
            r="4.5"
            class={c.inside === undefined ? "alone" : c.inside ? "inside" : "outside"}
          />
        )}
      </svg>
      <div class="small">{texts.join(", ")}</div>
    </>
  );
}

// WhyNots says why policies have left things as they are.
function WhyNots({ view }: { view: View }) {
  if (!view.why_not.length) return null;
  return (
    <details>
      <summary>Why nothing was changed</summary>
      <ul>
        {view.why_not
          .slice()
          .reverse()
          .map((w) => (
            <li key={w.policy + w.why + w.first}>
              <strong>{w.policy || "a person"}</strong>, commits {w.first} to {w.last},{" "}
              {w.times} times: {w.why}
            </li>
          ))}
      </ul>
    </details>
  );
}
