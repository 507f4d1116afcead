package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/layout/layouttest"
	"github.com/shoal-ml/shoal/state/reshape"
	"github.com/shoal-ml/shoal/tensor"
)

// meshJob is a job whose workers have parts of a state and make steps until they are let go. On
// every mesh they compare what they have with an oracle. newMeshJob sets all fields before a worker
// runs; then they stay as they are. The callbacks run on the goroutines of workers.
type meshJob struct {
	t       *testing.T
	c       *testHosts
	spec    layout.Spec
	tensors []layout.Tensor
	said    reshape.Statement // what workers state of the state
	first   string            // mesh with which the job begins
	starts  *group.Group      // a goroutine that starts workers
	workers *group.Group      // a goroutine for each worker
	arrived chan arrival
	// does runs before a worker hands its state over; nil = nothing runs.
	does func(number int, at *agent.Agent, next string) error
	// drops runs before a worker drops a reshape that has failed; nil = nothing runs.
	drops func()
	// spoils changes the state that a worker begins with; nil = it stays right.
	spoils func(number int, memory []byte)
	// states changes what a worker states of the state; nil = the worker states what is true.
	states func(number int, said *reshape.Statement)
	spread bool // the job is redundant
	alone  bool // the first host has no network
	orders agent.Orders
}

// arrival is a worker that has its part of the state on a mesh, or that is not needed there.
type arrival struct {
	mesh string
	rank int    // -1 = the worker is not needed on the mesh
	err  string // error of its call, which leaves mesh and rank unset; "" = none
}

// liveSpec places tensors in all ways: whole, cut unevenly, on some stages; and flat over dp,
// unless replicas asks for every place of dp to have the same.
func liveSpec(replicas bool) (layout.Spec, []layout.Tensor) {
	spec := layout.Spec{Shoal: layout.Version, Mesh: "pp=1,dp=1,tp=1", Rules: []layout.Rule{
		{Match: "embed", Place: "pp=at(0,-1), tp=shard(0,ceil)"},
		{Match: "optimizer.**", Place: "dp=flat(moments)"},
		{Match: "layers.#.up", Place: "pp=spread(1,12), tp=shard(0,balanced)"},
		{Match: "layers.#.down", Place: "pp=spread(1,12), tp=shard(1,balanced), dp=flat"},
		{Match: "**"},
	}}
	if replicas {
		spec.Rules[1].Place, spec.Rules[3].Place = "tp=shard(1,ceil)",
			"pp=spread(1,12), tp=shard(1,balanced)"
	}
	tensors := []layout.Tensor{{Name: "embed", DType: tensor.F32, Shape: tensor.Shape{11, 3}},
		{Name: "norm", DType: tensor.BF16, Shape: tensor.Shape{5}},
		{Name: "step", DType: tensor.I64},
		// longer than runs that travel together
		{Name: "table", DType: tensor.F32, Shape: tensor.Shape{68, 256}}}
	for l := range 12 {
		for _, name := range []string{"layers.%d.up", "optimizer.layers.%d.up"} {
			tensors = append(tensors,
				layout.Tensor{Name: fmt.Sprintf(name, l), DType: tensor.F32,
					Shape: tensor.Shape{7, 4}})
		}
		tensors = append(tensors,
			layout.Tensor{Name: fmt.Sprintf("layers.%d.down", l), DType: tensor.F64,
				Shape: tensor.Shape{4, 9}})
	}
	return spec, tensors
}

// newMeshJob begins a job on hosts of the given slots, with as many workers as its mesh has ranks;
// replicas is that of liveSpec; prepare may set the callbacks, spread and orders before; nil = none
// are set. The caller defers end.
func newMeshJob(t *testing.T, mesh string, slots []int, replicas bool,
	prepare func(s *meshJob)) *meshJob {
	s := &meshJob{t: t, first: mesh, workers: group.New(context.Background()),
		arrived: make(chan arrival, 1000)}
	s.spec, s.tensors = liveSpec(replicas)
	text, err := json.Marshal(s.spec)
	if err != nil {
		t.Fatal(err)
	}
	s.said = reshape.Statement{Layout: string(text), Mesh: mesh}
	for _, x := range s.tensors {
		s.said.Tensors = append(s.said.Tensors,
			reshape.Tensor{Name: x.Name, DType: x.DType.String(),
				Shape: append([]int{}, x.Shape...)})
	}
	if prepare != nil {
		prepare(s)
	}
	m, err := layout.ParseMesh(mesh)
	if err != nil {
		t.Fatal(err)
	}
	over := func(m fabric.Network) fabric.Network { return m }
	if s.alone {
		over = nil
	}
	s.c = startHostsOn(t, over, m.Ranks(), slots, s.orders)
	for _, a := range s.c.agents {
		if s.spread {
			a.LearnMeshes(true, nil)
		}
	}
	s.starts = group.New(context.Background())
	s.starts.Go("starts", func(ctx context.Context) error {
		for {
			select {
			case number := <-s.c.started:
				s.workers.Go("worker", func(context.Context) error { return s.runWorker(number) })
			case <-ctx.Done():
				return nil
			}
		}
	})
	return s
}

// end lets the workers go, waits for them, and fails the test if one has failed. It is for a defer:
// what workers have registered for cleanup must wait for them.
func (s *meshJob) end() {
	s.leadingAgent().ReleaseWorkers("the test is over")
	s.starts.Stop(nil)
	if err := errors.Join(s.starts.Wait(), s.workers.Wait()); err != nil {
		s.t.Error(err)
	}
}

// leadingAgent is the agent that leads, or that of the first host while none does. Any goroutine
// may call it.
func (s *meshJob) leadingAgent() *agent.Agent {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	for _, a := range s.c.agents {
		// one that was cut off believes that it leads
		if st := a.Status(); st.Head == a.Host() && !st.Stuck {
			return a
		}
	}
	return s.c.head
}

// expectedPart is what an oracle says that a rank has on a mesh, as new memory; nil if the mesh
// cannot be, which fails the test. Any goroutine may call it.
func (s *meshJob) expectedPart(mesh string, rank int) []byte {
	st, err := reshape.NewState(&s.said)
	if err != nil {
		s.t.Error(err)
		return nil
	}
	l, err := st.OnMesh(mesh)
	if err != nil {
		s.t.Error(err)
		return nil
	}
	spec := s.spec
	for _, axis := range []string{"pp", "dp", "tp"} {
		if !strings.Contains(mesh, axis) {
			mesh = strings.TrimPrefix(mesh+","+axis+"=1", ",")
		}
	}
	spec.Mesh = mesh
	memory := make([]byte, l.Bytes(rank))
	for name, a := range layouttest.ExpectedArrays(&spec, s.tensors)[rank] {
		for i, e := range a.Data {
			size := s.tensors[max(e.Tensor, 0)].DType.Size()
			for x := range size {
				if e != layouttest.Padding {
					memory[l.Offset(rank, name)+i*size+x] = byte(1 +
						(e.Tensor*31+e.Index*7+x*13)%251)
				}
			}
		}
	}
	return memory
}

// awaitMesh blocks until all ranks of a mesh have arrived, and fails the test if one says that they
// cannot.
func (s *meshJob) awaitMesh(mesh string) {
	s.t.Helper()
	m, err := layout.ParseMesh(mesh)
	if err != nil {
		s.t.Fatal(err)
	}
	for missing := m.Ranks(); missing > 0; {
		a := <-s.arrived
		switch {
		case a.err != "":
			s.t.Fatalf("on the way to mesh %s: %s", mesh, a.err)
		case a.mesh == mesh && a.rank >= 0:
			missing--
		}
	}
}
