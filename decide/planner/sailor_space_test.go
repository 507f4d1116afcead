package planner_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/importer"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// The plans that Sailor compares, by its code (eth-easl/sailor cf2c8e3, sailor_planner/cpp_src):
// stages of the same number of layers, the last ones of one more; the same number of replicas of
// each stage, some on each kind of device, where for each stage and kind an own number of devices
// share its layers; the same number of micro-batches for all replicas, which need not divide the
// batch. Sailor looks at some of these numbers of devices only, by heuristics; here all of them are
// compared. This file knows nothing of how the planner searches.

// sailorSpace is a model on two kinds of devices.
type sailorSpace struct {
	planner.Request
	places [2][2]cluster.Place // by kind, on two hosts
	count  [2]int              // devices by kind
	inHost int                 // devices of a host
	player timeline.Player
}

// sailorUse is a stage on a kind of device: how many of these share its layers, 0 = it is not
// there, and what it takes.
type sailorUse struct {
	tp                        int
	forward, backward, update float64
	params                    int64
	sends                     float64 // seconds of its transfers, if its neighbours are such too
}

// seconds returns what a micro-batch takes, with its transfers if sends is set.
func (u sailorUse) seconds(sends bool) float64 {
	if sends {
		return u.forward + u.backward + u.sends
	}
	return u.forward + u.backward
}

// sailorStage is a stage of a plan, on each kind so often.
type sailorStage struct {
	use      [2]sailorUse
	replicas [2]int
}

// newSailorSpace returns what Sailor compares for a request with two kinds.
func newSailorSpace(r planner.Request) *sailorSpace {
	x := &sailorSpace{Request: r, inHost: r.Cluster.Hosts[0].Places}
	for k := range x.places {
		var hosts []string
		for _, p := range r.Cluster.Places() {
			if p.Kind != r.Cluster.Kinds[k].Name {
				continue
			}
			x.count[k]++
			if len(hosts) < 2 && !slices.Contains(hosts, p.Host) {
				x.places[k][len(hosts)] = p
				hosts = append(hosts, p.Host)
			}
		}
	}
	return x
}

// best returns the seconds of the best plan that it finds, what that is, and what no plan takes
// less than. It tries all numbers of stages, micro-batches and replicas, and all times that the
// slowest stage can take, with and without transfers, each with as few devices as that needs.
func (x *sailorSpace) best() (seconds float64, what string, bound float64) {
	seconds, bound = math.Inf(1), math.Inf(1)
	all := x.count[0] + x.count[1]
	for stages := 1; stages <= len(x.Model.Layers); stages++ {
		for _, sample := range x.samples() {
			for replicas, before := 1, 0; replicas <= all/stages; replicas++ {
				micro := (x.Batch + sample*replicas - 1) / (sample * replicas)
				if micro == before { // as Sailor does: the same with more devices
					continue
				}
				before = micro
				uses := x.uses(stages, sample, micro)
				bound = min(bound, x.least(uses, replicas, micro))
				for _, sends := range []bool{false, true} {
					for _, limit := range limitsOf(uses, sends) {
						// Links between the kinds may be a little faster.
						if 0.8*float64(micro)*limit >= seconds {
							break
						}
						plan := x.fill(uses, replicas, limit, sends, 0)
						if plan == nil {
							continue
						}
						took := x.step(plan, replicas, sample, micro, seconds)
						if took < seconds {
							seconds, what = took, describeSailor(plan, sample, micro)
						}
					}
				}
			}
		}
	}
	return seconds, what, bound
}

// least returns what no plan of so many replicas and micro-batches takes less than, if transfers
// and averaging took no time: the slowest stage makes all micro-batches, and the first of them goes
// through all stages, each as fast as it can be there. +Inf = there is no plan.
func (x *sailorSpace) least(uses [][2][]sailorUse, replicas, micro int) (seconds float64) {
	for _, both := range uses {
		fastest := math.Inf(1)
		for _, u := range slices.Concat(both[0], both[1]) {
			fastest = min(fastest, u.seconds(false))
		}
		seconds += fastest
	}
	for _, limit := range limitsOf(uses, false) {
		// The order in which fill moves replicas needs fewest devices, but for one replica.
		if x.fill(uses, replicas, limit, false, x.inHost) != nil {
			return seconds + float64(micro-1)*limit
		}
	}
	return math.Inf(1)
}

// samples lists the sizes of micro-batches.
func (x *sailorSpace) samples() (list []int) {
	for _, p := range x.Model.Points {
		list = append(list, p.Micro)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// evenly returns the first layer of a stage of so many, as Sailor cuts them.
func (x *sailorSpace) evenly(s, stages int) int {
	n := len(x.Model.Layers)
	return s*(n/stages) + max(0, s-(stages-n%stages))
}

// uses lists for each stage and kind how the stage can be there, so that it fits into memory by
// 1F1B, the ones with fewer devices first.
func (x *sailorSpace) uses(stages, sample, micro int) (uses [][2][]sailorUse) {
	for s := range stages {
		var both [2][]sailorUse
		for k := range both {
			for _, tp := range x.Model.Degrees(x.Cluster.Kinds[k].Name) {
				u, fits := x.useOf(k, s, stages, tp, sample, min(micro, stages-s))
				if fits {
					both[k] = append(both[k], u)
				}
			}
		}
		uses = append(uses, both)
	}
	return uses
}

// limitsOf lists the times that stages can take, with transfers if sends is set, in order.
func limitsOf(uses [][2][]sailorUse, sends bool) (list []float64) {
	for _, both := range uses {
		for _, u := range slices.Concat(both[0], both[1]) {
			list = append(list, u.seconds(sends))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// useOf returns what a stage takes on a kind where so many devices share its layers, and reports
// that it was measured, and fits into memory while it holds so many micro-batches.
func (x *sailorSpace) useOf(k, s, stages, tp, sample, held int) (u sailorUse, fits bool) {
	kind := x.Cluster.Kinds[k]
	point := x.Model.Point(kind.Name, tp, sample)
	if point == nil {
		return u, false
	}
	from, to, bytes := x.evenly(s, stages), x.evenly(s+1, stages), int64(0)
	u.tp = tp
	for i := from; i < to; i++ {
		l := &x.Model.Layers[i]
		took := point.Layers[l.ID]
		params, state := l.Rank(tp)
		u.forward += took.Forward
		u.backward += took.Backward
		u.update += took.Update
		u.params += params
		bytes += state + took.Kept*int64(held)
	}
	for _, before := range []int{from, to} { // over which something is sent
		if before == 0 || before == len(x.Model.Layers) {
			continue
		}
		sent := x.Model.Layers[before-1].Out * int64(sample)
		bytes += 2 * sent
		u.sends += x.link(k, k).SecondsTogether(float64(sent), x.inHost/tp)
	}
	return u, bytes <= kind.Memory-kind.Reserve
}

// fill makes a plan of which no stage takes longer than limit for a micro-batch, with transfers if
// sends is set, with as few devices for each replica as that needs; nil = there are not enough,
// even if there were some more of the first kind. Replicas are on the second kind, and as many as
// must be on the first, in the order of how many devices that spares.
func (x *sailorSpace) fill(uses [][2][]sailorUse, replicas int, limit float64,
	sends bool, more int) []sailorStage {
	plan, used, order := make([]sailorStage, len(uses)), [2]int{}, make([]int, len(uses))
	for s := range plan {
		order[s] = s
		for k := range plan[s].use {
			i := slices.IndexFunc(uses[s][k], func(u sailorUse) bool {
				return u.seconds(sends) <= limit
			})
			if i >= 0 {
				plan[s].use[k] = uses[s][k][i]
			}
		}
		k := 1
		if plan[s].use[1].tp == 0 {
			k = 0
		}
		if plan[s].use[k].tp == 0 {
			return nil
		}
		plan[s].replicas[k] = replicas
		used[k] += replicas * plan[s].use[k].tp
	}
	spares := func(s int) float64 { // devices of the second kind for one of the first
		return float64(plan[s].use[1].tp) / float64(plan[s].use[0].tp)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(spares(b), spares(a)) })
	for _, s := range order {
		y := &plan[s]
		for used[1] > x.count[1] && y.replicas[1] > 0 && y.use[0].tp > 0 {
			y.replicas[0]++
			y.replicas[1]--
			used[0] += y.use[0].tp
			used[1] -= y.use[1].tp
		}
	}
	if used[0] > x.count[0]+more || used[1] > x.count[1] {
		return nil
	}
	return plan
}

// step returns the seconds of a step of a plan by timelines; +Inf = at least most. The replicas of
// each stage that are on the first kind make the first pipelines together, so that few of these
// have both kinds.
func (x *sailorSpace) step(plan []sailorStage, replicas, sample, micro int,
	most float64) (seconds float64) {
	tails, edges := make([]float64, len(plan)), []int{0}
	for s := range plan {
		tails[s] = x.tail(&plan[s], replicas)
		edges = append(edges, plan[s].replicas[0])
	}
	slices.Sort(edges)
	for _, r := range slices.Compact(edges) { // of pipelines that are alike the first
		if r == replicas {
			break
		}
		kind := func(s int) int {
			if r < plan[s].replicas[0] {
				return 0
			}
			return 1
		}
		list := make([]timeline.Stage, len(plan))
		for s := range list {
			u := plan[s].use[kind(s)]
			list[s] = timeline.Stage{Forward: u.forward, Backward: u.backward, Tail: tails[s],
				Ahead: min(len(plan)-s, micro)}
			if s+1 == len(plan) {
				break
			}
			next := plan[s+1].use[kind(s+1)]
			link := x.link(kind(s), kind(s+1))
			sent := x.Model.Layers[x.evenly(s+1, len(plan))-1].Out * int64(sample)
			list[s].Down = link.SecondsTogether(float64(sent),
				min(replicas, max(x.inHost/u.tp, x.inHost/next.tp)))
			list[s].Up, list[s].Latency, list[s].HalfDuplex = list[s].Down, link.Latency,
				link.HalfDuplex
			list[s].Transfer = map[string]timeline.Transfer{
				cluster.Exchange: timeline.Exchange,
				cluster.Blocking: timeline.Blocking}[x.Cluster.Transfer]
		}
		seconds = max(seconds, x.player.Seconds(list, micro, most))
	}
	return seconds
}

// tail returns the seconds in which the replicas of a stage average and update.
func (x *sailorSpace) tail(y *sailorStage, replicas int) float64 {
	update, average := 0.0, 0.0
	for a := range y.use {
		for b := range y.use {
			if y.replicas[a] == 0 || y.replicas[b] == 0 || a == b && y.replicas[a] == 1 {
				continue
			}
			link := x.link(a, b)
			average = max(average, cost.RingSeconds(replicas,
				max(y.use[a].params, y.use[b].params), func(part float64) float64 {
					return link.SecondsTogether(part, max(y.use[a].tp, y.use[b].tp))
				}))
		}
		if y.replicas[a] > 0 {
			update = max(update, y.use[a].update)
		}
	}
	return average + update
}

// link returns the link between hosts of two kinds.
func (x *sailorSpace) link(a, b int) *cluster.Link {
	to := x.places[b][0]
	if a == b {
		to = x.places[b][1]
	}
	return x.Cluster.Link(x.places[a][0], to)
}

// describeSailor says for people what a plan is: of each stage how many replicas, by how many
// devices that share its layers, on the first and on the second kind.
func describeSailor(plan []sailorStage, sample, micro int) string {
	var list []string
	for _, y := range plan {
		list = append(list, fmt.Sprintf("%d×%d+%d×%d", y.replicas[0], y.use[0].tp, y.replicas[1],
			y.use[1].tp))
	}
	return fmt.Sprintf("%d stages, %d micro-batches of %d: %s", len(plan), micro, sample,
		strings.Join(list, " "))
}

// TestSailorSpace compares plans on both mixes of Sailor with the best of the plans that Sailor
// compares: none is slower.
func TestSailorSpace(t *testing.T) {
	for _, hosts := range [][]importer.SailorHosts{{on("A100-40", 32), on("V100-16", 96)},
		{on("A100-40", 64), on("V100-16", 64)}} {
		r := sailorRequest(t, hosts...)
		got, err := planner.Solve(r)
		if err != nil {
			t.Fatal(err)
		}
		best, what, bound := newSailorSpace(r).best()
		t.Logf("%v: %.3f s; the best of Sailor's plans %.3f s, none below %.3f s: %s", hosts,
			got.Best.Predicted.Seconds, best, bound, what)
		if !(bound <= best && best >= got.Best.Predicted.Seconds) {
			t.Errorf("%v: %s takes %v s, and a plan of Sailor's %v, at least %v", hosts,
				got.Best.Mesh, got.Best.Predicted.Seconds, best, bound)
		}
	}
}
