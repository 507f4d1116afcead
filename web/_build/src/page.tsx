import "uplot/dist/uPlot.min.css";
import "./page.css";

import { h, render, Fragment } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";

import { Chart, Line } from "./chart";
import { apply, clock, column, Common, digits, duration, isLong, Series, View } from "./model";
import { Hosts, Workers } from "./hosts";
import { Facts, Ledger, Notes, Timeline } from "./parts";

// The page of a run. In a report the run is in the file; else the server sends it, and what comes.

type Link = "open" | "lost" | "refused" | "report";

// embedded returns the run that is in the file, or nothing where a server sends it.
function embedded(): View | undefined {
  const text = document.getElementById("data")?.textContent;
  return text ? (JSON.parse(text) as View) : undefined;
}

// login gives the token of the address to the server, which answers with a cookie, and takes it out
// of the address once the server has it. It reports whether the server takes it; without a token
// the cookie may do. It fails where the server does not say, as it is gone or has too much to do.
async function login(): Promise<boolean> {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return true;
  const reply = await fetch("login", { method: "POST", body: token, credentials: "same-origin" });
  if (!reply.ok && reply.status !== 401) throw new Error(reply.statusText);
  history.replaceState(null, "", location.pathname + location.search);
  return reply.ok;
}

// mostSilence is for how many milliseconds nothing may come, where something comes each second,
// until the link is taken for lost: of a network that is gone, or a server that stands still, the
// browser says nothing.
const mostSilence = 20_000;

// follow gives show what the server sends, and say how the link to it is. The function that it
// returns ends that.
function follow(
  show: (f: (v: View | undefined) => View | undefined) => void,
  say: (l: Link) => void,
): () => void {
  let source: EventSource | undefined;
  let stopped = false;
  let timer = 0;
  let silence = 0;
  // wait has the link opened anew if nothing comes for too long from now on.
  const wait = () => {
    clearTimeout(silence);
    silence = window.setTimeout(() => {
      say("lost");
      open();
    }, mostSilence);
  };
  const heard = () => {
    say("open");
    wait();
  };
  const open = () => {
    if (stopped) return;
    source?.close();
    wait();
    source = new EventSource("events");
    source.addEventListener("view", (e) => {
      heard();
      const view = JSON.parse((e as MessageEvent<string>).data) as View;
      show(() => view);
    });
    source.addEventListener("update", (e) => {
      heard();
      const update = JSON.parse((e as MessageEvent<string>).data) as Common;
      show((view) => {
        if (!view) return view;
        const now = apply(view, update);
        if (isLong(now)) window.setTimeout(open, 0);
        return now;
      });
    });
    source.onerror = async () => {
      if (stopped) return;
      say("lost");
      if (source?.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
      source.close();
      clearTimeout(silence);
      const reply = await fetch("state", { credentials: "same-origin" }).catch(() => undefined);
      if (reply?.status === 401) say("refused");
      else if (!stopped) timer = window.setTimeout(open, 2000);
    };
  };
  const begin = () => {
    void login().then(
      (ok) => (ok ? open() : say("refused")),
      () => {
        if (stopped) return;
        say("lost");
        timer = window.setTimeout(begin, 2000);
      },
    );
  };
  begin();
  return () => {
    stopped = true;
    clearTimeout(timer);
    clearTimeout(silence);
    source?.close();
  };
}

// useTheme returns the theme, which is that of the system at first, and a function that changes it
// from dark to light and back.
function useTheme(): [string, () => void] {
  const [choice, choose] = useState("");
  const [dark, setDark] = useState(matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const media = matchMedia("(prefers-color-scheme: dark)");
    const change = () => setDark(media.matches);
    media.addEventListener("change", change);
    return () => media.removeEventListener("change", change);
  }, []);
  const theme = choice || (dark ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  // from what is chosen when it is called, which may be before the page is drawn again
  const system = dark ? "dark" : "light";
  return [theme, () => choose((c) => ((c || system) === "dark" ? "light" : "dark"))];
}

const palette = ["--c1", "--c2", "--c3", "--c4", "--c5"];
const dashes = [[], [6, 3], [2, 3], [8, 3, 2, 3], [1, 2]];

// Charts are all charts of a run.
function Charts({ view, theme }: { view: View; theme: string }) {
  const common = { marks: view.marks, theme };
  const list: h.JSX.Element[] = [];
  const steps = view.series.find((s) => s.name === "steps");
  const loss = view.series.find((s) => s.name === "metric loss");
  // add adds a chart of columns of the steps, each with its label, if one of them has numbers.
  const add = (
    title: string,
    columns: [string, string][],
    format?: (x: number) => string,
    counts = false,
  ) => {
    const lines = columns.flatMap(([name, label], i): Line[] => {
      const values = column(view, "steps", name);
      const now = name === "loss" && loss ? saysNow(loss) : undefined;
      return values ? [{ label, values, color: palette[i], dash: dashes[i], now }] : [];
    });
    if (steps && lines.length)
      list.push(
        <Chart
          key={title}
          title={title}
          times={steps.times}
          lines={lines}
          format={format}
          counts={counts}
          {...common}
        />,
      );
  };
  add("Loss", [["loss", "loss, the workers' mean"]]);
  if (!list.length && loss) {
    list.push(
      <Chart
        key="loss"
        title={`Loss, as worker ${loss.worker} reports it`}
        times={loss.times}
        lines={[{ label: "loss", values: loss.values[0], color: "--c1", now: saysNow(loss) }]}
        {...common}
      />,
    );
  }
  add("Samples a second", [["rate", "samples/s"]]);
  const split = view.series.find((s) => s.name === "split");
  if (split) {
    const lines = split.columns.map((name, i) => ({
      label: splitNames[name] ?? name,
      values: split.values[i],
      color: palette[i],
      dash: dashes[i],
    }));
    list.push(
      <Chart
        key="split"
        title="Where the time of a step goes"
        times={split.times}
        lines={lines}
        stacked
        format={duration}
        {...common}
      />,
    );
  }
  add(
    "Seconds of a step",
    [
      ["median", "median"],
      ["p10", "10 % are shorter"],
      ["p90", "10 % are longer"],
    ],
    duration,
  );
  add("Workers", [["workers", "workers"]], digits, true);
  add(
    "Samples of a step",
    [
      ["batch", "batch"],
      ["noise", "gradient noise scale"],
    ],
    digits,
    true,
  );
  add("Longest wait for the slowest worker", [["slack", "slack"]], duration);
  const pace = view.series.find((s) => s.name === "pace");
  if (pace && pace.times.length > 1) {
    list.push(
      <Chart
        key="pace"
        title="Steps a second, since this page is served"
        times={pace.times}
        lines={[{ label: "steps/s", values: pace.values[0], color: "--c2" }]}
        {...common}
      />,
    );
  }
  const others = view.series.filter((s) => {
    const name = s.name.startsWith("metric ") ? s.name.slice(7) : "step";
    return name !== "step" && s !== loss;
  });
  // chartOf returns the chart of a metric.
  const chartOf = (s: Series) => (
    <Chart
      key={s.name}
      title={`${s.columns[0]}, as worker ${s.worker} reports it`}
      times={s.times}
      lines={[{ label: s.columns[0], values: s.values[0], color: "--c3", now: saysNow(s) }]}
      {...common}
    />
  );
  const first = others.slice(0, mostMetrics);
  const rest = others.slice(mostMetrics);
  if (!list.length && !first.length) return null;
  return (
    <div id="charts" tabIndex={-1}>
      <div class="charts">
        {list}
        {first.map(chartOf)}
      </div>
      {rest.length > 0 && (
        <details class="more">
          <summary>{rest.length} more that workers report</summary>
          <div class="charts">{rest.map(chartOf)}</div>
        </details>
      )}
    </div>
  );
}

// saysNow returns what a legend says of a metric whose newest report is no number.
function saysNow(s: Series): string | undefined {
  const values = s.values[0];
  return values[values.length - 1] === null ? "NaN" : undefined;
}

// splitNames says what the parts of the time of a step are.
const splitNames: Record<string, string> = {
  data: "waiting for samples",
  exposed: "exposed communication",
};

// mostMetrics is how many charts of what workers report are open from the start.
const mostMetrics = 4;

const links: Record<Link, string> = {
  open: "",
  report: "",
  lost: "The server does not answer, or has too many pages open; this is what it last sent.",
  refused: "The server wants its token: open the address that shoal dash has printed.",
};

// goTo shows a part of the page, from which the keyboard then goes on.
function goTo(id: string) {
  const part = document.getElementById(id);
  part?.scrollIntoView();
  part?.focus({ preventScroll: true });
}

const sections = [
  ["charts", "Charts"],
  ["timeline", "What happened"],
  ["ledger", "Changes"],
  ["hosts", "Hosts"],
  ["workers", "Workers"],
];

const file = embedded();

// App is the page.
function App() {
  const [view, setView] = useState<View | undefined>(file);
  const [link, setLink] = useState<Link>(file ? "report" : "open");
  const [theme, change] = useTheme();
  const [there, setThere] = useState(""); // the parts of the page that have something to show
  useLayoutEffect(() => {
    setThere(
      sections
        .map(([id]) => id)
        .filter((id) => document.getElementById(id))
        .join(" "),
    );
  });
  useEffect(() => (file ? undefined : follow(setView, setLink)), []);
  useEffect(() => {
    const onKey = (e: KeyboardEvent) => {
      if (e.ctrlKey || e.metaKey || e.altKey || e.target instanceof HTMLInputElement) return;
      const section = sections[Number(e.key) - 1];
      if (e.key === "t") change();
      else if (section) goTo(section[0]);
      else return;
      e.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [theme]);
  const word = view?.state.word ?? "";
  useEffect(() => {
    document.title = view ? `${view.job || "a run"}: ${word}` : "shoal";
  }, [view?.job, word]);
  return (
    <>
      <header>
        <div class="title">
          <h1>{view ? view.job || view.dir : "shoal"}</h1>
          {view && (
            <span class={`state state-${word}`} role="status">
              {word}
            </span>
          )}
          <button onClick={change} title="key t">
            {theme === "dark" ? "☀ light" : "☾ dark"}
          </button>
        </div>
        {links[link] && (
          <p class="alert" role="alert">
            {links[link]}
          </p>
        )}
        {view && (
          <p class="muted">
            {view.live ? "led from " + view.live.head : view.state.text}
            {!view.live && !view.state.over && view.state.at > 0 && (
              <>; it was heard last at {clock(view.state.at, view.made)}</>
            )}
            {view.command && (
              <>
                {" "}
                · <code>{view.command.join(" ")}</code>
              </>
            )}
          </p>
        )}
        {view && <Facts view={view} />}
        <nav aria-label="parts of the page">
          {sections.map(([id, name], i) =>
            there.split(" ").includes(id) ? (
              <a
                key={id}
                href={"#" + id}
                onClick={(e) => {
                  e.preventDefault();
                  goTo(id);
                }}
              >
                {i + 1} {name}
              </a>
            ) : null,
          )}
        </nav>
      </header>
      {!view && !links[link] && <p class="muted">Waiting for the server…</p>}
      {view && (
        <main>
          <Notes view={view} />
          <Charts view={view} theme={theme} />
          <Timeline view={view} />
          <Ledger view={view} />
          <Hosts view={view} />
          <Workers view={view} live={link !== "report"} />
        </main>
      )}
      {view && (
        <footer class="muted">
          {view.dir} · shoal {view.version || "–"} ·{" "}
          {link === "report" ? "a report of " : "as of "}
          {clock(view.made, 0)}
        </footer>
      )}
    </>
  );
}

render(<App />, document.getElementById("app")!);
