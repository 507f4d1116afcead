import { h } from "preact";
import { useEffect, useState } from "preact/hooks";

import { bytes, digits, duration, slackOf, View } from "./model";

// Hosts and workers, and the output of these. Preact escapes all texts.

interface HostInfo {
  name: string;
  ranks: number[];
}

// hostsOf returns the hosts, as the launcher or the newest rows have them.
function hostsOf(view: View): HostInfo[] {
  if (!view.live) return view.hosts;
  const by = new Map<string, number[]>();
  for (const w of view.live.workers) {
    if (w.running && w.rank >= 0) by.set(w.host, [...(by.get(w.host) ?? []), w.rank]);
  }
  return by.size ? [...by].map(([name, ranks]) => ({ name, ranks })) : view.hosts;
}

// Hosts is a map of the hosts and the links between them, with how busy they are.
export function Hosts({ view }: { view: View }) {
  const hosts = hostsOf(view);
  if (!hosts.length) return null;
  const slack = slackOf(view);
  const cable = view.newest?.cable;
  return (
    <section class="card wide" id="hosts" tabIndex={-1}>
      <h2>Hosts and links</h2>
      <div class="map">
        {hosts.length > 1 && hosts.length <= 24 && <Ring hosts={hosts} view={view} />}
        <ul class="hosts">
          {hosts.map((host) => {
            const usage = view.newest?.machines?.find((m) => m.host === host.name)?.usage ?? {};
            const waits = host.ranks.map((r) => slack[r]).filter((x) => x !== undefined);
            return (
              <li key={host.name}>
                <strong>{host.name}</strong>
                {view.live?.head === host.name && " ★ leads"}
                <div class="muted">
                  {host.ranks.length === 1 ? "rank " : "ranks "}
                  {host.ranks.slice(0, 16).join(", ")}
                  {host.ranks.length > 16 && " …"}
                  {waits.length > 0 &&
                    ` · waits ${duration(Math.min(...waits))} a step for the slowest`}
                </div>
                {["cpu", "memory", "disk", "nic"].map((what) =>
                  usage[what] === undefined ? null : (
                    <div class="use" key={what}>
                      <span>{what}</span>
                      <meter min={0} max={1} value={usage[what]} high={0.9} aria-hidden="true" />
                      <span>{Math.round(100 * usage[what])} %</span>
                    </div>
                  ),
                )}
              </li>
            );
          })}
        </ul>
      </div>
      {!!cable && (
        <p class="muted">A cable carries {bytes(cable)}/s, as all-reduces have measured it.</p>
      )}
    </section>
  );
}

// shortName returns what there is room for of the name of a host: of a longer one what is before
// its domain, or the end of that, by which hosts differ.
function shortName(name: string): string {
  const most = 14;
  if (name.length <= most) return name;
  const own = name.replace(/\.[a-z].*$/i, "");
  return own.length <= most ? own : "…" + own.slice(1 - most);
}

// Ring draws the hosts on a circle, and a line for each link.
function Ring({ hosts, view }: { hosts: HostInfo[]; view: View }) {
  const at = (i: number) => {
    const angle = (2 * Math.PI * i) / hosts.length - Math.PI / 2;
    return [150 + 95 * Math.cos(angle), 110 + 80 * Math.sin(angle)];
  };
  const links = hosts.flatMap((_, i) => hosts.slice(i + 1).map((_, k) => [i, i + 1 + k]));
  return (
    <svg
      class="ring"
      viewBox="0 0 300 220"
      role="img"
      aria-label={`${hosts.length} hosts, ${links.length} links`}
    >
      {links.map(([a, b]) => (
        <line
          key={a + "-" + b}
          x1={at(a)[0]}
          y1={at(a)[1]}
          x2={at(b)[0]}
          y2={at(b)[1]}
          class="link"
        />
      ))}
      {hosts.map((host, i) => (
        <g key={host.name}>
          <circle cx={at(i)[0]} cy={at(i)[1]} r="15" class="node" />
          <text x={at(i)[0]} y={at(i)[1] + 4} text-anchor="middle">
            {view.live?.head === host.name ? "★" : host.ranks.length}
          </text>
          <text x={at(i)[0]} y={at(i)[1] + 28} text-anchor="middle">
            {shortName(host.name)}
          </text>
        </g>
      ))}
    </svg>
  );
}

// Workers lists the workers, and shows the newest output of one of them where there is a server to
// ask.
export function Workers({ view, live }: { view: View; live: boolean }) {
  const [chosen, choose] = useState<number | null>(null);
  const slack = slackOf(view);
  const rows = view.live
    ? view.live.workers.map((w) => ({
        worker: w.worker,
        rank: w.rank < 0 ? "–" : String(w.rank),
        host: w.host,
        state: !w.running
          ? w.ended || "ended"
          : w.awaited
            ? "waited for"
            : w.waiting
              ? "waiting"
              : "running",
        waits: w.rank >= 0 && slack[w.rank] !== undefined ? duration(slack[w.rank]) : "–",
        said: Object.entries(w.metrics ?? {})
          .sort()
          .map(([k, v]) => `${k}=${typeof v === "number" ? digits(v) : v}`)
          .join(" "),
      }))
    : view.ended.map((e) => ({
        worker: e.rank,
        rank: "–",
        host: "",
        state: e.how,
        waits: "–",
        said: "",
      }));
  if (!rows.length) return null;
  return (
    <section class="card wide" id="workers" tabIndex={-1}>
      <h2>Workers</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="workers">
        <table class="folds">
          <thead>
            <tr>
              <th>worker</th>
              <th>rank</th>
              <th>host</th>
              <th>state</th>
              <th>waits</th>
              <th>reported</th>
              {live && <th>output</th>}
            </tr>
          </thead>
          <tbody>
            {rows.map((w) => (
              <tr key={w.worker}>
                <td class="num">
                  <span class="fold">worker </span>
                  {w.worker}
                </td>
                <td class="num">
                  <span class="fold">rank </span>
                  {w.rank}
                </td>
                <td>{w.host || "–"}</td>
                <td>{w.state}</td>
                <td class="num">
                  <span class="fold">waits </span>
                  {w.waits}
                </td>
                <td class="small whole">{w.said || "–"}</td>
                {live && (
                  <td>
                    <button
                      aria-pressed={chosen === w.worker}
                      onClick={() => choose(chosen === w.worker ? null : w.worker)}
                    >
                      log of {w.worker}
                    </button>
                  </td>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {live && chosen !== null && <Log worker={chosen} over={view.state.over} />}
    </section>
  );
}

// Log shows the newest output of a worker, anew each two seconds while the run lasts.
function Log({ worker, over }: { worker: number; over: boolean }) {
  const [text, setText] = useState("…");
  useEffect(() => {
    let stopped = false;
    let timer = 0;
    const read = async () => {
      try {
        const reply = await fetch(`log?worker=${worker}`, { credentials: "same-origin" });
        const body = await reply.text();
        if (!stopped) setText(reply.ok ? body || "It has printed nothing." : body);
      } catch {
        if (!stopped) setText("The server does not answer.");
      }
      if (!stopped && !over) timer = window.setTimeout(read, 2000);
    };
    void read();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [worker, over]);
  return (
    <pre class="log" tabIndex={0} aria-label={`output of worker ${worker}`}>
      {text}
    </pre>
  );
}
