package meshes

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/reshape"
	"github.com/shoal-ml/shoal/topo"
)

// Where only a checkpoint has all of the state, a redundant job has its ranks on two hosts all the
// same: nothing is there that would have to move.
func TestArrangeForACheckpoint(t *testing.T) {
	said := reshape.Statement{
		Layout: `{"shoal": "layout/1", "mesh": "pp=1,dp=1", "rules": [{"match": "layers.#", "place": "pp=spread(1,2)"}]}`, Mesh: "pp=2,dp=4"}
	for l := range 2 {
		said.Tensors = append(said.Tensors,
			reshape.Tensor{Name: fmt.Sprint("layers.", l), DType: "f32", Shape: []int{4}})
	}
	state, err := reshape.NewState(&said)
	if err != nil {
		t.Fatal(err)
	}
	s := Planner{}
	s.SetState(state)
	left := topo.View{
		Members: []topo.Member{{Worker: 4, Host: "a"}, {Worker: 5, Host: "a"},
			{Worker: 6, Host: "b"}, {Worker: 7, Host: "b"}}}
	for redundant, want := range map[bool][]topo.WorkerID{false: {4, 5, 6, 7}, true: {4, 6, 5, 7}} {
		shape := Shape{Mesh: said.Mesh, Workers: []topo.WorkerID{0, 1, 2, 3, 4, 5, 6, 7},
			Redundant: redundant}
		to, err := s.Arrange(shape, "", left)
		next, order := to.Mesh, to.Order
		if lost := new(StateLost); !errors.As(err, &lost) || next != "pp=2,dp=2" ||
			!slices.Equal(order, want) {
			t.Errorf("redundant %v: mesh %s on %v, not on %v; %v", redundant, next, order, want,
				err)
		}
	}
	// A host that is to be left has no rank, whether the state is there or not.
	for _, lost := range []string{"", "the state is lost"} {
		shape := Shape{Mesh: "pp=2,dp=2", Workers: []topo.WorkerID{4, 5, 6, 7},
			Leaving: []string{"a"}, Redundant: true, Lost: lost}
		to, err := s.Arrange(shape, "", left)
		next, order := to.Mesh, to.Order
		if gone := new(StateLost); errors.As(err, &gone) != (lost != "") ||
			next != "pp=2,dp=1" || !slices.Equal(order, []topo.WorkerID{6, 7}) {
			t.Errorf("host a is left, lost %q: mesh %s on %v; %v", lost, next, order, err)
		}
	}
	// What is placed anew stays on the hosts in the order of its ranks, whatever those are called.
	for i, host := range []string{"b", "b", "a", "a"} {
		left.Members[i].Host = host
	}
	begun := Shape{Mesh: "pp=2,dp=2", Workers: []topo.WorkerID{4, 5, 6, 7}, Redundant: true}
	if to, err := s.Arrange(begun, begun.Mesh, left); err != nil ||
		!slices.Equal(to.Order, []topo.WorkerID{4, 6, 5, 7}) {
		t.Errorf("on hosts whose names are in another order than their ranks: %v; %v", to.Order,
			err)
	}
}

// A job begins with the mesh that its spec says for so many workers, or else with the one that its
// program states, or with a smaller one of as many ranks as it
// has workers. What its workers cannot hold, or would leave one of them without a rank, stays as it
// is stated, and is refused.
func TestFirstMesh(t *testing.T) {
	state, err := reshape.NewState(&reshape.Statement{Mesh: "dp=1",
		Layout: `{"shoal": "layout/1", "mesh": "dp=1,tp=1",` +
			` "rules": [{"match": "w", "place": "tp=shard(0)"}]}`,
		Tensors: []reshape.Tensor{{Name: "w", DType: "f32", Shape: []int{4}}}})
	if err != nil {
		t.Fatal(err)
	}
	p := Planner{Meshes: map[int]string{8: "dp=4,tp=2"}}
	p.SetState(state)
	for _, c := range []struct {
		stated  string
		workers int
		want    string
	}{
		{"dp=2,tp=2", 4, "dp=2,tp=2"},
		{"tp=2, dp=2", 4, "tp=2, dp=2"},
		{"dp=2,tp=2", 2, "dp=1,tp=2"},
		{"dp=2,tp=2", 1, "dp=1,tp=1"},
		{"dp=3,tp=2", 4, "dp=2,tp=2"},
		{"tp=4", 2, "tp=2"},
		{"tp=4", 3, "tp=4"}, // a tensor of four rows cannot be cut into three parts
		{"dp=2,tp=2", 3, "dp=2,tp=2"},
		{"dp=2,tp=2", 5, "dp=2,tp=2"},
		{"dp=2,xp=2", 2, "dp=2,xp=2"},
		{"dp=2,tp=2", 8, "dp=4,tp=2"},
	} {
		if got := p.FirstMesh(c.stated, c.workers); got != c.want {
			t.Errorf("%d workers begin with mesh %s, of which %s is stated, and not with %s",
				c.workers, got, c.stated, c.want)
		}
	}
}

// The plan that the head arranges is the one that is prepared and executed, whatever people ask
// meanwhile. Who executes it has agreed on the workers of all ranks.
func TestAPlanIsMadeOnce(t *testing.T) {
	state, err := reshape.NewState(&reshape.Statement{Mesh: "dp=2",
		Layout:  `{"shoal": "layout/1", "mesh": "dp=1", "rules": [{"match": "w", "place": ""}]}`,
		Tensors: []reshape.Tensor{{Name: "w", DType: "f32", Shape: []int{4}}}})
	if err != nil {
		t.Fatal(err)
	}
	p := Planner{}
	p.SetState(state)
	members := topo.View{Members: []topo.Member{{Worker: 4, Host: "a"}, {Worker: 5, Host: "b"},
		{Worker: 6, Host: "b"}}}
	shape := Shape{Mesh: "dp=2", Workers: []topo.WorkerID{4, 5}}
	next, err := p.Arrange(shape, "dp=3", members)
	if err != nil {
		t.Fatal(err)
	}
	shape.Next, shape.Order = next.Mesh, next.Order
	arranged := p.newest.change
	prepared, err := p.PreparePlan(&shape, members)
	if err != nil || prepared != arranged {
		t.Errorf("prepared %p, arranged %p, %v", prepared, arranged, err)
	}
	to, err := p.Layout("dp=1")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.PlanBoth(&shape, members, to); err != nil {
		t.Error(err)
	}
	taken, err := p.PopPlan(&shape, members)
	if err != nil || taken != arranged || p.newest.change != nil {
		t.Errorf("taken %p, arranged %p, kept %p, %v", taken, arranged, p.newest.change, err)
	}
	slices.Reverse(shape.Order)
	if _, err := p.PopPlan(&shape, members); err == nil {
		t.Error("a plan of other ranks than the head's is taken")
	}
}

// Ranks are on hosts of the kinds that a mesh names. Where a lost host leaves too few workers of a
// kind, the degrees are kept, and ranks can be anywhere; a mesh that somebody asks for is refused.
func TestArrangeByKind(t *testing.T) {
	state, err := reshape.NewState(&reshape.Statement{Mesh: "dp=2",
		Layout:  `{"shoal": "layout/1", "mesh": "dp=1,tp=1", "rules": [{"match": "w", "place": ""}]}`,
		Tensors: []reshape.Tensor{{Name: "w", DType: "f32", Shape: []int{4}}}})
	if err != nil {
		t.Fatal(err)
	}
	members := topo.View{Members: []topo.Member{{Worker: 4, Host: "a"}, {Worker: 5, Host: "b"},
		{Worker: 6, Host: "c"}}}
	kinds := []HostKind{{Host: "a", Kind: "v100"}, {Host: "b", Kind: "a100"},
		{Host: "c", Kind: "a100"}, {Host: "d", Kind: "v100"}}
	for _, x := range []struct {
		mesh, ask, next string
		want            []topo.WorkerID
		lost            string // whether a checkpoint must give the state
	}{
		{"dp=3", "dp=3(on=a100/v100/a100)", "dp=3(on=a100/v100/a100)", []topo.WorkerID{5, 4, 6},
			""},
		{"dp=3", "dp=2(on=a100/v100)", "dp=2(on=a100/v100)", []topo.WorkerID{5, 4}, "lost"},
		{"dp=3", "dp=2(on=v100/v100)", "", nil, ""},
		{"dp=4,tp=1(on=a100)", "", "dp=3,tp=1", []topo.WorkerID{4, 5, 6}, ""},
		{"dp=4(on=a100/a100/v100/v100)", "", "dp=3", []topo.WorkerID{4, 5, 6}, ""},
		{"dp=3(on=a100/a100/v100)", "", "dp=3(on=a100/a100/v100)", []topo.WorkerID{6, 5, 4}, ""},
	} {
		p := Planner{}
		p.SetState(state)
		shape := Shape{Mesh: x.mesh, Workers: []topo.WorkerID{4, 5, 6, 7}, Lost: x.lost,
			Kinds: kinds}
		l, err := p.Layout(x.mesh)
		if err != nil {
			t.Fatal(err)
		}
		shape.Workers = shape.Workers[:l.Ranks]
		to, err := p.Arrange(shape, x.ask, members)
		lost, unfit := new(StateLost), new(layout.KindError)
		if errors.As(err, &lost) != (x.lost != "") || errors.As(err, &unfit) != (x.next == "") ||
			to.Mesh != x.next || !slices.Equal(to.Order, x.want) {
			t.Errorf("from %s to %q: mesh %s on %v, want %s on %v; %v", x.mesh, x.ask, to.Mesh,
				to.Order, x.next, x.want, err)
		}
		if dropped := x.mesh == "dp=4,tp=1(on=a100)"; (to.Note != "") != dropped {
			t.Errorf("from %s to %q: the note %q", x.mesh, x.ask, to.Note)
		}
	}
	to, err := (&Planner{state: state, layouts: map[string]*reshape.Layout{}}).Layout(
		"dp=4(on=v100/v100/a100/a100)")
	if err != nil {
		t.Fatal(err)
	}
	at, hosts := LocateWorkers(&Shape{Workers: []topo.WorkerID{4, 5, 6}, Kinds: kinds}, members)
	at.Kinds = append(at.Kinds, "v100")
	if addWorkers(&at, to, len(hosts)+1); !slices.Equal(at.Hosts, []int{0, 1, 2, 3}) {
		t.Errorf("a worker more is planned on host %v", at.Hosts)
	}
}
