package experiment

import (
	"fmt"

	"github.com/shoal-ml/shoal/decide/learn"
	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/portable"
)

const (
	// graphDraws is how many times hosts and bytes are drawn for each shape of a job.
	graphDraws = 200
	// graphSlots is how many slots all hosts have together, half of which are free.
	graphSlots = 64
)

// graphShapes are the stages of jobs, and the replicas of each stage.
var graphShapes = []struct{ stages, replicas int }{{4, 1}, {8, 1}, {16, 1}, {1, 4}, {1, 8}, {1, 16},
	{2, 2}, {2, 4}, {4, 2}, {4, 4}, {2, 8}, {8, 2}}

// graph asks what it brings to know what the workers of a job send each other.
var graph = Experiment{
	Name:  "graph",
	Paper: asrpt.Paper,
	Question: "How much less do steps of a job take if its workers are placed by what they send " +
		"each other?",
	Run: runGraph,
}

// runGraph places jobs on hosts of four and of eight slots.
func runGraph(in *Input) (*Table, error) {
	t := &Table{Heads: []string{"STAGES", "REPLICAS", "HOSTS OF", "BEST FIT", "HEAVY-EDGE", "GAIN",
		"MOST"}, Difference: "The paper's graphs are not public, so jobs are drawn: pipelines " +
		"whose stages are rings of replicas, numbered stage by stage, with edges of 10 MB to 1 " +
		"GB a step, between hosts at 10 Gbit/s, and steps of 1 s on one host. Each of 64 slots " +
		"is free with a chance of a half. BEST FIT and HEAVY-EDGE are how many times longer " +
		"than on one host a step takes on average, and gains are parts of what it takes by " +
		"best fit."}
	for i, shape := range graphShapes {
		in.reportProgress("graph", i, len(graphShapes))
		for _, perHost := range []int{4, 8} {
			random := learn.NewRandom(in.Seed)
			fits, heavies, gains, most := 0.0, 0.0, 0.0, 0.0
			for range graphDraws {
				g := drawGraph(random, shape.stages, shape.replicas)
				m, err := drawHosts(random, g.Workers, perHost)
				if err != nil {
					return nil, err
				}
				fit, err := slowdownWhenPlaced(m, g, false)
				if err != nil {
					return nil, err
				}
				heavy, err := slowdownWhenPlaced(m, g, true)
				if err != nil {
					return nil, err
				}
				gain := 1 - heavy/fit
				fits, heavies, gains = fits+fit, heavies+heavy, gains+gain
				most = max(most, gain)
			}
			t.Rows = append(t.Rows, []string{fmt.Sprint(shape.stages), fmt.Sprint(shape.replicas),
				fmt.Sprint(perHost), fmt.Sprintf("%.3f", fits/graphDraws),
				fmt.Sprintf("%.3f", heavies/graphDraws), percentText(gains / graphDraws),
				percentText(most)})
		}
	}
	return t, nil
}

// drawGraph draws what the workers of a pipeline send each other, each of whose stages is a ring of
// replicas. All edges between stages are alike, and so are all edges of rings.
func drawGraph(random *learn.Random, stages, replicas int) *sched.Graph {
	g := &sched.Graph{Workers: stages * replicas, Step: 1, Link: 10e9 / 8}
	draw := func() float64 {
		return 1e7 * portable.Exp(float64(random.Float()*portable.Log(100)))
	}
	forward, ring := draw(), draw()
	for stage := range stages {
		for i := range replicas {
			w := stage*replicas + i
			if stage+1 < stages {
				g.Edges = append(g.Edges, sched.Edge{From: w, To: w + replicas, Bytes: forward})
			}
			if replicas > 2 || replicas == 2 && i == 0 {
				next := stage*replicas + (i+1)%replicas
				g.Edges = append(g.Edges, sched.Edge{From: w, To: next, Bytes: ring})
			}
		}
	}
	return g
}

// drawHosts draws which slots of hosts are free, at least n of them.
func drawHosts(random *learn.Random, n, perHost int) (*sched.Machine, error) {
	policy, err := sched.Named("fifo")
	if err != nil {
		return nil, err
	}
	for {
		m := sched.New(sched.Config{Policy: policy})
		for i := range graphSlots / perHost {
			host := fmt.Sprintf("h%02d", i)
			if err := m.Host(sched.Host{Name: host, Slots: perHost}); err != nil {
				return nil, err
			}
			taken := 0
			for range perHost {
				taken += random.IntN(2)
			}
			if taken == 0 {
				continue
			}
			other := jobOf(taken)
			other.ID, other.Has = sched.JobID(host), []sched.Place{{Host: host, Slots: taken}}
			if err := m.Submit(other); err != nil {
				return nil, err
			}
		}
		if m.Free() >= n {
			return m, nil
		}
	}
}

// jobOf returns a job of n slots, of which nothing else is known.
func jobOf(n int) sched.Job {
	return sched.Job{ID: "x", Min: n, Max: n, Asked: n, Left: sched.Estimate{Mean: 1},
		Speed: sched.Curve{{Slots: n, Rate: 1}}}
}

// slowdownWhenPlaced has machine m start a job with the workers of graph g, which ends then, and
// returns how many times longer its step takes than on one host. known says whether the machine
// knows the graph.
func slowdownWhenPlaced(m *sched.Machine, g *sched.Graph, known bool) (float64, error) {
	j := jobOf(g.Workers)
	if known {
		j.Graph = g
	}
	if err := m.Submit(j); err != nil {
		return 0, err
	}
	var at []int
	for _, grant := range m.Ready() {
		if at = grant.Workers; at != nil {
			break
		}
		for i, place := range grant.Places {
			for range place.Slots {
				at = append(at, i)
			}
		}
	}
	if len(at) != g.Workers {
		return 0, fmt.Errorf("%d of %d workers are placed", len(at), g.Workers)
	}
	cut := 0.0
	for _, e := range g.Edges {
		if at[e.From] != at[e.To] {
			cut += e.Bytes
		}
	}
	return 1 + cut/g.Link/g.Step, m.Ended(j.ID)
}
