package collective_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// waitsText writes what a matcher says of who is waited for: by rank, and how many wait in which
// call of which group.
func waitsText(m *collective.Matcher) string {
	var words []string
	for _, x := range m.Waits() {
		text := fmt.Sprintf("%d: %d in %d %v", x.Worker-workerOfRank(0), x.Waiters, x.Group,
			x.Call.Call.Kind)
		if x.OwnCall != nil {
			text += fmt.Sprintf(", itself in %d %v", x.OwnCall.Call.Group, x.OwnCall.Call.Kind)
		}
		words = append(words, text)
	}
	return strings.Join(words, "; ")
}

// send returns a send of a few bytes to a rank.
func send(to int) collective.Call {
	return collective.Call{Kind: collective.Send, DType: tensor.U8, Peer: to, In: make([]byte, 1),
		Shape: []int{1}}
}

// recv returns a receive of what send sends, from a rank.
func recv(from int) collective.Call {
	return collective.Call{Kind: collective.Recv, DType: tensor.U8, Peer: from,
		Out: make([]byte, 1), Shape: []int{1}}
}

// tagged returns a call with the tag 7, which other calls do not have.
func tagged(c collective.Call) collective.Call {
	c.Tag = 7
	return c
}

// onGroup returns a call on a group.
func onGroup(id topo.GroupID, c collective.Call) collective.Call {
	c.Group = id
	return c
}

// Waits lists those who hold up others, at the end of chains and in circles, for collectives and
// transfers.
func TestWaits(t *testing.T) {
	type post struct {
		rank int
		call collective.Call
	}
	const pair = 1 // the group of the ranks 0 and 1
	for _, tc := range []struct {
		name  string
		posts []post
		lost  []int
		want  string
	}{
		{"nothing is posted", nil, nil, ""},
		{"one is missing", []post{{0, sumOf(4)}, {2, sumOf(4)}, {3, sumOf(4)}}, nil,
			"1: 3 in 0 all_reduce"},
		{"two are missing", []post{{0, sumOf(4)}, {3, sumOf(4)}}, nil,
			"1: 2 in 0 all_reduce; 2: 2 in 0 all_reduce"},
		{"nobody is", []post{{0, sumOf(4)}, {1, sumOf(4)}, {2, sumOf(4)}, {3, sumOf(4)}}, nil, ""},
		{"all are in mid-step",
			[]post{{0, stepCall(true)}, {1, stepCall(true)}, {2, stepCall(true)},
				{3, stepCall(true)}}, nil, ""},
		{"one goes ahead in a step",
			[]post{{0, stepCall(true)}, {1, stepCall(true)}, {2, stepCall(true)},
				{3, stepCall(true)},
				{2, stepCall(false)}}, nil,
			"0: 1 in 0 all_reduce; 1: 1 in 0 all_reduce; 3: 1 in 0 all_reduce"},
		{"the slowest, of all that are not at the end",
			[]post{{0, stepCall(true)}, {1, stepCall(true)}, {2, stepCall(true)},
				{0, stepCall(true)},
				{1, stepCall(true)}, {0, stepCall(false)}}, nil,
			"3: 3 in 0 all_reduce"},
		{"a lost one is missing", []post{{0, stepCall(false)}, {2, stepCall(false)}}, []int{1},
			"3: 2 in 0 all_reduce"},
		{"calls that have failed wait for nobody",
			[]post{{0, sumOf(4)}, {1, sumOf(5)}, {0, sumOf(4)}}, nil,
			"1: 1 in 0 all_reduce; 2: 1 in 0 all_reduce; 3: 1 in 0 all_reduce"},
		{"a chain", []post{{1, recv(0)}, {2, recv(1)}, {3, recv(2)}}, nil, "0: 1 in 0 recv"},
		{"a chain of sends", []post{{0, send(1)}, {1, send(2)}, {2, sumOf(4)}}, nil,
			"3: 1 in 0 all_reduce"},
		{"several send to one", []post{{0, send(3)}, {1, send(3)}, {0, send(3)}}, nil,
			"3: 2 in 0 send"},
		{"from any", []post{{0, recv(collective.AnyRank)}, {1, recv(2)}}, []int{3},
			"2: 1 in 0 recv; 2: 1 in 0 recv"},
		{"from any, where one waits for who asks",
			[]post{{0, recv(collective.AnyRank)}, {1, recv(0)}, {2, recv(0)}, {3, recv(0)}}, nil,
			"0: 1 in 0 recv, itself in 0 recv; 0: 1 in 0 recv, itself in 0 recv; 0: 1 in 0 " +
				"recv, itself in 0 recv; 1: 1 in 0 recv, itself in 0 recv; 2: 1 in 0 recv, " +
				"itself in 0 recv; 3: 1 in 0 recv, itself in 0 recv"},
		{"two from any, and one of them twice",
			[]post{{0, recv(collective.AnyRank)}, {1, recv(collective.AnyRank)},
				{1, tagged(recv(collective.AnyRank))}, {2, sumOf(4)}}, nil,
			"3: 2 in 0 recv; 3: 1 in 0 all_reduce"},
		{"from any, beside a collective",
			[]post{{0, recv(collective.AnyRank)}, {0, sumOf(4)}, {1, sumOf(4)}, {2, sumOf(4)}}, nil,
			"3: 3 in 0 all_reduce"},
		{"from any, beside a collective that others lack",
			[]post{{1, recv(collective.AnyRank)}, {1, onGroup(pair, sumOf(4))},
				{0, onGroup(pair, sumOf(4))}, {2, sumOf(4)}}, nil,
			"0: 1 in 0 all_reduce; 1: 1 in 0 all_reduce; 3: 1 in 0 all_reduce"},
		{"from any twice, beside a receive from one",
			[]post{{0, recv(collective.AnyRank)}, {0, recv(collective.AnyRank)}, {0, recv(2)}}, nil,
			"2: 1 in 0 recv"},
		{"all from any", []post{{0, recv(collective.AnyRank)}, {1, recv(collective.AnyRank)},
			{2, recv(collective.AnyRank)}}, []int{3},
			"0: 2 in 0 recv, itself in 0 recv; 1: 2 in 0 recv, itself in 0 recv; 2: 2 in 0 " +
				"recv, itself in 0 recv"},
		{"a group in which one is missing that others wait for",
			[]post{{0, onGroup(pair, sumOf(4))}, {2, sumOf(4)}, {3, sumOf(4)}}, nil,
			"1: 2 in 0 all_reduce; 1: 1 in 1 all_reduce"},
		{"a circle", []post{{0, onGroup(pair, sumOf(4))}, {1, sumOf(4)}, {2, sumOf(4)},
			{3, sumOf(4)}},
			nil,
			"0: 3 in 0 all_reduce, itself in 1 all_reduce; 1: 1 in 1 all_reduce, itself in 0 " +
				"all_reduce"},
		{"a circle, and one on whom it does not lie",
			[]post{{0, recv(1)}, {1, recv(0)}, {2, recv(0)}}, nil,
			"0: 1 in 0 recv, itself in 0 recv; 0: 1 in 0 recv, itself in 0 recv; 1: 1 in 0 " +
				"recv, itself in 0 recv"},
		{"a circle beside one who is missing", []post{{0, recv(1)}, {1, recv(0)}, {2, recv(3)}},
			nil,
			"0: 1 in 0 recv, itself in 0 recv; 1: 1 in 0 recv, itself in 0 recv; 3: 1 in 0 recv"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newElasticMatcher(4)
			for r := range 2 {
				if id, _, err := m.JoinGroup(workerOfRank(r), workers([]int{0, 1})); err != nil ||
					id != pair {
					t.Fatal(id, err)
				}
			}
			for i, p := range tc.posts {
				m.Post(posted(p.rank, uint64(i+1), p.call), nil)
			}
			for _, r := range tc.lost {
				m.LoseWorker(workerOfRank(r), "was killed", nil)
			}
			if got := waitsText(m); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// Many that receive from any do not make a list of each with each.
func TestWaitsForAny(t *testing.T) {
	const size = 100
	m := newMatcher(size)
	for r := range size / 2 {
		m.Post(posted(r, 1, recv(collective.AnyRank)), nil)
	}
	if list := m.Waits(); len(list) != size/2 || list[0].Waiters != size/2 {
		t.Errorf("%d waits", len(list))
	}
}

// A wait keeps its name as long as it lasts, whoever comes meanwhile, and the next one has another.
func TestWaitsKeepTheirNames(t *testing.T) {
	m := newMatcher(3)
	ids := func() (list []collective.WaitID) {
		for _, x := range m.Waits() {
			list = append(list, x.WaitID)
		}
		return list
	}
	m.Post(posted(0, 1, sumOf(4)), nil)
	first := ids()
	m.Post(posted(2, 1, sumOf(4)), nil)
	m.Post(posted(0, 2, sumOf(4)), nil)
	if got := ids(); len(first) != 2 || !slices.Equal(got, first[:1]) {
		t.Errorf("%v, then %v", first, got)
	}
	m.Post(posted(1, 1, sumOf(4)), nil)
	if got := ids(); len(got) != 2 || slices.Contains(first, got[0]) {
		t.Errorf("%v, then of the next collective %v", first, got)
	}
	m.Post(posted(1, 2, sumOf(4)), nil)
	m.Post(posted(2, 2, sumOf(4)), nil)
	m.Post(posted(0, 3, send(1)), nil)
	first = ids()
	m.Post(posted(0, 4, send(1)), nil)
	if got := ids(); len(first) != 1 || !slices.Equal(got, first) {
		t.Errorf("%v, then %v", first, got)
	}
}

// Whatever is posted, somebody is named as long as a worker waits in a call. Who is named lives, is
// waited for by others, and if he waits himself it is said in which call.
func TestWaitsOfRandomCalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 4
		m := newElasticMatcher(size)
		lost := map[topo.WorkerID]bool{}
		open := map[*collective.Posted]bool{}
		newest := map[topo.WorkerID]uint64{} // ticket of its newest call
		// waits reports whether a worker waits in a call that is open: it has not only left open a
		// receive from any rank, and called since.
		waits := func(p *collective.Posted) bool {
			return p.Call.Kind != collective.Recv || p.Call.Peer != collective.AnyRank ||
				p.Ticket == newest[p.Worker]
		}
		// over strikes the calls of sets, which are complete or have failed, from open.
		over := func(sets []collective.Ready) {
			for _, r := range sets {
				for _, p := range r.Calls {
					delete(open, p)
				}
			}
		}
		groups := []topo.GroupID{topo.World}
		for _, list := range [][]int{{0, 1}, {1, 2, 3}} {
			for _, r := range list {
				id, _, err := m.JoinGroup(workerOfRank(r), workers(list))
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Contains(groups, id) {
					groups = append(groups, id)
				}
			}
		}
		for i := range rapid.IntRange(1, 30).Draw(t, "calls") {
			rank := rapid.IntRange(0, size-1).Draw(t, "rank")
			w := workerOfRank(rank)
			if lost[w] {
				continue
			}
			if rapid.IntRange(0, 20).Draw(t, "lost") == 0 {
				lost[w] = true
				over(m.LoseWorker(w, "was killed", nil))
				for p := range open { // what it has posted waits for nobody any more
					if p.Worker == w {
						delete(open, p)
					}
				}
				continue
			}
			id := groups[rapid.IntRange(0, len(groups)-1).Draw(t, "group")]
			self, n, is := m.IndexInGroup(id, w)
			if !is {
				continue
			}
			c := sumOf(4)
			if kind := rapid.IntRange(0, 4).Draw(t, "kind"); kind < 3 {
				peer := (self + rapid.IntRange(1, n-1).Draw(t, "peer")) % n
				c = []collective.Call{send(peer), recv(peer), recv(collective.AnyRank)}[kind]
				c.Tag = uint32(rapid.IntRange(0, 1).Draw(t, "tag"))
			}
			p := posted(rank, uint64(i+1), onGroup(id, c))
			open[p], newest[w] = true, p.Ticket
			over(m.Post(p, nil))
			list := m.Waits()
			if waiting := slices.ContainsFunc(slices.Collect(maps.Keys(open)), waits); waiting !=
				(len(list) > 0) {
				t.Fatalf("%d calls are open, and named are %v", len(open), waitsText(m))
			}
			for _, x := range list {
				if lost[x.Worker] || x.Waiters < 1 || !open[x.Call] || x.Call.Worker == x.Worker ||
					!waits(x.Call) || x.OwnCall != nil &&
					(!open[x.OwnCall] || x.OwnCall.Worker != x.Worker || !waits(x.OwnCall)) {
					t.Fatalf("named are %v", waitsText(m))
				}
			}
			if again := m.Waits(); !slices.Equal(list, again) {
				t.Fatalf("%v, then %v", list, again)
			}
		}
	})
}
