package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/api"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/node"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/layout/layouttest"
	"github.com/shoal-ml/shoal/state/reshape"
	"github.com/shoal-ml/shoal/tensor"
)

// school is a job whose workers have parts of a state and make steps until they are let go. On every mesh they compare what they have with
// an oracle.
type school struct {
	t       *testing.T
	c       *cluster
	spec    layout.Spec
	tensors []layout.Tensor
	said    reshape.Statement
	first   string
	starts  *group.Group
	workers *group.Group
	arrived chan arrival
	does    func(seat int, at *node.Agent, next string) error // before a worker hands its state over; may be nil
	spoils  func(seat int, memory []byte)                     // what is done to what a worker begins with; may be nil
}

// arrival is a worker that has its part of the state on a mesh, or that is not needed there.
type arrival struct {
	mesh string
	rank int
	err  string // of its call, in place of all that
}

// liveSpec places tensors in all ways: whole, cut unevenly, on some stages; and unless every place of dp has the same, flat over dp.
func liveSpec(replicas bool) (layout.Spec, []layout.Tensor) {
	spec := layout.Spec{Shoal: layout.Version, Mesh: "pp=1,dp=1,tp=1", Rules: []layout.Rule{
		{Match: "embed", Place: "pp=at(0,-1), tp=shard(0,ceil)"},
		{Match: "optimizer.**", Place: "dp=flat(moments)"},
		{Match: "layers.#.up", Place: "pp=spread(1,12), tp=shard(0,balanced)"},
		{Match: "layers.#.down", Place: "pp=spread(1,12), tp=shard(1,balanced), dp=flat"},
		{Match: "**"},
	}}
	if replicas {
		spec.Rules[1].Place, spec.Rules[3].Place = "tp=shard(1,ceil)", "pp=spread(1,12), tp=shard(1,balanced)"
	}
	tensors := []layout.Tensor{{Name: "embed", DType: tensor.F32, Shape: tensor.Shape{11, 3}}, {Name: "norm", DType: tensor.BF16, Shape: tensor.Shape{5}}, {Name: "step", DType: tensor.I64}}
	for l := range 12 {
		for _, name := range []string{"layers.%d.up", "optimizer.layers.%d.up"} {
			tensors = append(tensors, layout.Tensor{Name: fmt.Sprintf(name, l), DType: tensor.F32, Shape: tensor.Shape{7, 4}})
		}
		tensors = append(tensors, layout.Tensor{Name: fmt.Sprintf("layers.%d.down", l), DType: tensor.F64, Shape: tensor.Shape{4, 9}})
	}
	return spec, tensors
}

// newSchool begins a job on hosts of the given slots, with as many workers as its mesh has ranks.
func newSchool(t *testing.T, mesh string, slots []int, replicas bool, prepare func(s *school)) *school {
	s := &school{t: t, first: mesh, workers: group.New(context.Background()), arrived: make(chan arrival, 1000)}
	s.spec, s.tensors = liveSpec(replicas)
	text, err := json.Marshal(s.spec)
	if err != nil {
		t.Fatal(err)
	}
	s.said = reshape.Statement{Layout: string(text), Mesh: mesh}
	for _, x := range s.tensors {
		s.said.Tensors = append(s.said.Tensors, reshape.Tensor{Name: x.Name, DType: x.DType.String(), Shape: append([]int{}, x.Shape...)})
	}
	if prepare != nil {
		prepare(s)
	}
	m, err := layout.ParseMesh(mesh)
	if err != nil {
		t.Fatal(err)
	}
	s.c = startCluster(t, m.Ranks(), slots, node.Orders{})
	s.starts = group.New(context.Background())
	s.starts.Go("starts", func(ctx context.Context) error {
		for {
			select {
			case seat := <-s.c.started:
				s.workers.Go("worker", func(context.Context) error { return s.work(seat) })
			case <-ctx.Done():
				return nil
			}
		}
	})
	return s
}

// end lets the workers go. It is for a defer: what workers clean up must wait for them.
func (s *school) end() {
	s.head().Release("the test is over")
	s.starts.Stop(nil)
	if err := errors.Join(s.starts.Wait(), s.workers.Wait()); err != nil {
		s.t.Error(err)
	}
}

// head is the agent that leads.
func (s *school) head() *node.Agent {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	for _, a := range s.c.agents {
		if st := a.Status(); st.Head == a.Host() && !st.Stuck { // one that was cut off believes that it leads
			return a
		}
	}
	return s.c.head
}

// holds is what an oracle says that a rank has.
func (s *school) holds(mesh string, rank int) []byte {
	st, err := reshape.New(&s.said)
	if err != nil {
		s.t.Error(err)
		return nil
	}
	l, err := st.On(mesh)
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
	for name, a := range layouttest.Expect(&spec, s.tensors)[rank] {
		for i, e := range a.Data {
			size := s.tensors[max(e.Tensor, 0)].DType.Size()
			for x := range size {
				if e != layouttest.Padding {
					memory[l.Offset(rank, name)+i*size+x] = byte(1 + (e.Tensor*31+e.Index*7+x*13)%251)
				}
			}
		}
	}
	return memory
}

// pupil is a worker of a school.
type pupil struct {
	*rawWorker
	school *school
	seat   seat
	memory part // what it has of the state
}

// part is memory of a worker.
type part struct {
	segment *arena.Segment
	id      uint32
	bytes   int
}

func (p part) of() []byte {
	if p.bytes == 0 {
		return nil
	}
	return p.segment.Mem[:p.bytes]
}

func (p part) ref() arena.Ref { return arena.Ref{Segment: p.id, Count: uint64(p.bytes)} }

func (w *pupil) room(bytes int) (p part, err error) {
	if bytes == 0 {
		return p, nil
	}
	r, fds := w.ask(api.Request{Type: api.TypeSegment, Bytes: int64(bytes)})
	p.id, p.bytes = r.ID, bytes
	if p.segment, err = arena.OpenSegment(fds[0]); err == nil {
		w.t.Cleanup(func() { p.segment.Close() })
	}
	return p, err
}

// work is the life of a worker.
func (s *school) work(at seat) error {
	w := &pupil{rawWorker: joinRawWith(s.t, at.agent, at.number, at.token), school: s, seat: at}
	err := w.live()
	switch err {
	case errHostDies:
		return nil
	case errDies:
		at.agent.Lost(at.number, "was killed by SIGKILL")
		return nil
	}
	at.agent.Finished(at.number, "exited with code 0")
	return err
}

func (w *pupil) live() error {
	text, err := json.Marshal(w.school.said)
	if err != nil {
		return err
	}
	paper, err := w.room(len(text))
	if err != nil {
		return err
	}
	copy(paper.of(), text)
	if r, _ := w.ask(api.Request{Type: api.TypeState, ID: paper.id, Bytes: int64(len(text))}); r.Type != api.TypeState {
		return fmt.Errorf("the state is answered with %+v", r)
	}
	begins := w.seat.number < w.school.c.workers
	if begins {
		mine := w.school.holds(w.school.first, w.seat.number)
		if w.memory, err = w.room(len(mine)); err != nil {
			return err
		}
		copy(w.memory.of(), mine)
		if w.school.spoils != nil {
			w.school.spoils(w.seat.number, w.memory.of())
		}
		w.school.arrived <- arrival{mesh: w.school.first, rank: w.seat.number}
	}
	step := arena.Descriptor{Kind: uint8(collective.Barrier), Flags: arena.Flags{Step: true}}
	if !begins {
		step = arena.Descriptor{Kind: arena.KindEnter}
	}
	for {
		w.submit(step)
		status, text := w.wait()
		step = arena.Descriptor{Kind: uint8(collective.Barrier), Flags: arena.Flags{Step: true}}
		switch status {
		case arena.Done:
			continue
		case arena.Lost:
			step = arena.Descriptor{Kind: arena.KindEnter}
			continue
		case arena.Changed:
			if w.control.View().Released {
				return nil
			}
		default:
			return fmt.Errorf("worker %d: a step ends with %d: %s", w.seat.number, status, text)
		}
		lost, err := w.settle()
		if err != nil || w.control.View().Released {
			return err
		}
		if lost {
			step = arena.Descriptor{Kind: arena.KindEnter}
		}
	}
}

// settle goes to the mesh that the job goes to.
func (w *pupil) settle() (lost bool, err error) {
	for {
		shape, _ := w.ask(api.Request{Type: api.TypeShape})
		if shape.Next == "" {
			if shape.Broken != "" {
				w.school.arrived <- arrival{err: shape.Broken}
				return false, fmt.Errorf("the job is broken: %s", shape.Broken)
			}
			return false, nil
		}
		if w.school.does != nil {
			if err := w.school.does(w.seat.number, w.seat.agent, shape.Next); err != nil {
				return false, err
			}
		}
		if int(shape.In) != w.memory.bytes {
			return false, fmt.Errorf("worker %d has %d bytes on mesh %s, and is told %d", w.seat.number, w.memory.bytes, shape.Mesh, shape.In)
		}
		next, err := w.room(int(shape.Out))
		if err != nil {
			return false, err
		}
		d := arena.Descriptor{Kind: uint8(collective.Reshape), DType: uint8(tensor.U8), In: w.memory.ref(), Out: next.ref(), NDim: 1, Flags: arena.Flags{Step: true}}
		d.Shape[0] = d.In.Count
		w.submit(d)
		switch status, text := w.wait(); status {
		case arena.Changed:
		case arena.Lost:
			return true, nil
		default:
			w.school.arrived <- arrival{err: text}
			return false, nil
		}
		w.memory = next
		view := w.control.View()
		if view.Released {
			w.school.arrived <- arrival{mesh: shape.Next, rank: -1}
			return false, nil
		}
		if want := w.school.holds(shape.Next, view.Rank); !bytes.Equal(w.memory.of(), want) {
			w.t.Errorf("rank %d has on mesh %s\n%x, want\n%x", view.Rank, shape.Next, w.memory.of(), want)
		}
		w.school.arrived <- arrival{mesh: shape.Next, rank: view.Rank}
	}
}

// await waits until all ranks of a mesh have arrived.
func (s *school) await(mesh string) {
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

// A job goes from mesh to mesh, with more workers and with less, on one host and on several.
func TestReshapes(t *testing.T) {
	for _, slots := range [][]int{{6}, {3, 3}, {2, 1, 3}} {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("%v,seed=%d", slots, seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			meshes := []string{"dp=4", "dp=2,tp=2", "tp=4", "pp=2,dp=2", "pp=2,tp=2", "pp=4", "dp=3", "tp=3", "dp=5", "tp=5", "pp=3,tp=2", "tp=2,dp=2", "pp=1,dp=1,tp=1"}
			mesh := "dp=2,tp=2"
			s := newSchool(t, mesh, slots, false, nil)
			defer s.end()
			s.await(mesh)
			for range 12 {
				next := meshes[rng.IntN(len(meshes))]
				if next == mesh {
					continue
				}
				for { // the members that came last may not have made their first step
					err := s.head().Reshape(next, "the test")
					if err == nil {
						break
					}
					if !strings.Contains(err.Error(), "has not begun") && !strings.Contains(err.Error(), "on its way") {
						t.Fatal(err)
					}
				}
				t.Logf("to %s", next)
				s.await(next)
				mesh = next
			}
			if st := s.head().Status(); st.Mesh != mesh || st.Reshaping != "" {
				t.Errorf("the job says that it has mesh %q and goes to %q, not %s", st.Mesh, st.Reshaping, mesh)
			}
		})
	}
}

// A worker is killed, or a host, when others have handed their state over already: nothing of the new mesh counts, and the others
// go on with what they had, on a mesh that they can hold.
func TestALossInAReshape(t *testing.T) {
	for _, c := range []struct {
		mesh, next, then string
		slots            []int
		victim           int
		host             string
	}{
		{"dp=2,tp=2", "tp=4", "dp=1,tp=2", []int{4}, 3, ""},
		{"dp=3", "dp=2", "dp=2", []int{2, 2}, 0, ""},
		{"dp=4", "tp=4", "dp=3", []int{2, 2}, 2, ""},
		{"dp=2,tp=2", "dp=5", "dp=2,tp=2", []int{6}, 1, ""}, // the worker that was started for the other mesh takes the place
		{"dp=3,tp=1", "tp=3", "dp=2,tp=1", []int{1, 1, 1}, -1, "c"},
		{"dp=3,tp=1", "tp=3", "dp=2,tp=1", []int{1, 1, 1}, -1, "a"},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			lost := false
			s := newSchool(t, c.mesh, c.slots, true, func(s *school) {
				s.does = func(seat int, at *node.Agent, next string) error {
					switch {
					case next != c.next || lost && seat != c.victim:
					case seat == c.victim:
						return errDies
					case c.host == at.Host():
						s.c.net.Kill(fabric.Host(c.host))
						return errHostDies
					}
					return nil
				}
			})
			defer s.end()
			s.await(c.mesh)
			for {
				err := s.head().Reshape(c.next, "the test")
				if err == nil {
					break
				}
				if !strings.Contains(err.Error(), "has not begun") {
					t.Fatal(err)
				}
			}
			s.await(c.then)
		})
	}
}

// Replicas that should be the same and are not are found, and the state stays where it was.
func TestSpoiltReplica(t *testing.T) {
	s := newSchool(t, "dp=2", []int{2}, true, func(s *school) {
		s.spoils = func(seat int, memory []byte) {
			if seat == 1 {
				memory[0] ^= 1
			}
		}
	})
	defer s.end()
	s.await("dp=2")
	for s.head().Reshape("dp=2,tp=1,pp=1", "the test") != nil {
	}
	if a := <-s.arrived; !strings.Contains(a.err, "a fingerprint differs") {
		t.Errorf("a replica is spoilt, and a worker is told %+v", a)
	}
	if st := s.head().Status(); st.Mesh != "dp=2" {
		t.Errorf("the job has mesh %s", st.Mesh)
	}
}
