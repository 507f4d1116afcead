package agent_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/state/reshape"
)

// A job goes from mesh to mesh, with more workers and with less, on one host and on several.
func TestReshapes(t *testing.T) {
	for _, slots := range [][]int{{6}, {3, 3}, {2, 1, 3}} {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("%v,seed=%d", slots, seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			meshes := []string{"dp=4", "dp=2,tp=2", "tp=4", "pp=2,dp=2", "pp=2,tp=2", "pp=4",
				"dp=3", "tp=3", "dp=5", "tp=5", "pp=3,tp=2", "tp=2,dp=2", "pp=1,dp=1,tp=1"}
			mesh := "dp=2,tp=2"
			s := newMeshJob(t, mesh, slots, false, nil)
			defer s.end()
			s.awaitMesh(mesh)
			for range 12 {
				next := meshes[rng.IntN(len(meshes))]
				if next == mesh {
					continue
				}
				for { // the members that came last may not have made their first step
					err := s.leadingAgent().Reshape(next, "the test")
					if err == nil {
						break
					}
					if !strings.Contains(err.Error(), "has not begun") &&
						!strings.Contains(err.Error(), "on its way") {
						t.Fatal(err)
					}
				}
				t.Logf("to %s", next)
				s.awaitMesh(next)
				mesh = next
			}
			if st := s.leadingAgent().Status(); st.Mesh != mesh || st.Reshaping != "" {
				t.Errorf("the job says that it has mesh %q and goes to %q, not %s", st.Mesh,
					st.Reshaping, mesh)
			}
		})
	}
}

// The host that leads has no workers, as where a job is started on other hosts than one's own: it
// arranges meshes all the same, also if the layout is longer than a message may be that carries it
// to other hosts compressed.
func TestAHeadWithoutWorkersReshapes(t *testing.T) {
	s := newMeshJob(t, "dp=2,tp=2", []int{member.NoSlots, 2, 2}, false, func(s *meshJob) {
		s.said.Layout += strings.Repeat(" ", 1<<20)
	})
	defer s.end()
	s.awaitMesh("dp=2,tp=2")
	for _, next := range []string{"tp=4", "pp=2,dp=1", "dp=2,tp=2"} {
		// the members that came last may not have made their first step
		for s.leadingAgent().Reshape(next, "the test") != nil {
		}
		s.awaitMesh(next)
	}
}

// A host without workers comes to lead, as a witness can when the head is lost. It arranges meshes
// by the layout that the others have, also where all workers of the host that is left came late.
func TestAWitnessComesToLeadAMesh(t *testing.T) {
	s := newMeshJob(t, "dp=2", []int{2, 2, member.NoSlots}, true, func(s *meshJob) {
		s.does = func(_ int, at *agent.Agent, next string) error {
			if next != "dp=3" || at.Host() != "a" {
				return nil
			}
			s.c.hub.Kill("a")
			return errHostDies
		}
	})
	defer s.end()
	s.awaitMesh("dp=2")
	s.retryUntilBegun(func() error { return s.leadingAgent().Reshape("dp=4", "the test") })
	s.awaitMesh("dp=4")
	s.c.mu.Lock()
	witness := s.c.agents["c"]
	s.c.mu.Unlock()
	newest := s.c.head.Status().Generation
	awaitStatus(t, witness, func(known agent.Status) bool {
		return known.Generation == newest && known.Mesh == "dp=4"
	})
	witness.ForceHead()
	for { // it has to hear first what the others know
		err := witness.Reshape("dp=3", "the test")
		if err == nil {
			break
		}
		if !errors.Is(err, head.ErrNotHead) && !strings.Contains(err.Error(), "has not begun") {
			t.Fatal(err)
		}
	}
	s.awaitMesh("dp=2")
}

// An agent that does not lead, and is asked for another mesh, refuses and goes on.
func TestOnlyTheHeadReshapes(t *testing.T) {
	s := newMeshJob(t, "dp=2,tp=2", []int{2, 2}, false, nil)
	defer s.end()
	s.awaitMesh("dp=2,tp=2")
	s.c.mu.Lock()
	other := s.c.agents["b"]
	s.c.mu.Unlock()
	if _, err := other.Await(t.Context(), func(known agent.Status) bool {
		return known.Mesh != "" // else it would refuse since it knows of no mesh
	}); err != nil {
		t.Fatal(err)
	}
	if err := other.Reshape("tp=4", "the test"); !errors.Is(err, head.ErrNotHead) {
		t.Errorf("%v", err)
	}
	if _, err := other.PlanReshape("tp=4"); !errors.Is(err, head.ErrNotHead) {
		t.Errorf("%v", err)
	}
}

// A worker is killed, or a host, when others have handed their state over already: nothing of the
// new mesh counts, and the others go on with what they had, on a mesh that they can hold.
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
		// the worker that was started for the other mesh takes the place
		{"dp=2,tp=2", "dp=5", "dp=2,tp=2", []int{6}, 1, ""},
		{"dp=3,tp=1", "tp=3", "dp=2,tp=1", []int{1, 1, 1}, -1, "c"},
		{"dp=3,tp=1", "tp=3", "dp=2,tp=1", []int{1, 1, 1}, -1, "a"},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			lost := false
			s := newMeshJob(t, c.mesh, c.slots, true, func(s *meshJob) {
				s.does = func(number int, at *agent.Agent, next string) error {
					switch {
					case next != c.next || lost && number != c.victim:
					case number == c.victim:
						return errDies
					case c.host == at.Host():
						s.c.hub.Kill(fabric.Host(c.host))
						return errHostDies
					}
					return nil
				}
			})
			defer s.end()
			s.awaitMesh(c.mesh)
			for {
				err := s.leadingAgent().Reshape(c.next, "the test")
				if err == nil {
					break
				}
				if !strings.Contains(err.Error(), "has not begun") {
					t.Fatal(err)
				}
			}
			s.awaitMesh(c.then)
		})
	}
}

// Every host has a stage alone when the job begins. In a redundant job the ranks are on other hosts
// after the first step, so that one of the hosts is lost, the one that leads too, and the others
// have all of the state.
func TestRedundantRanks(t *testing.T) {
	for _, c := range []struct {
		mesh, then string
		slots      []int
		host       string
	}{
		{"pp=2,dp=2", "pp=2,dp=1", []int{2, 2}, "b"},
		{"pp=2,dp=2,tp=2", "pp=2,dp=1,tp=2", []int{4, 4}, "b"},
		{"pp=3,dp=2", "pp=3,dp=1", []int{2, 2, 2}, "a"},
		{"tp=2,dp=3", "tp=2,dp=1", []int{3, 2, 1}, "a"},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			var dying atomic.Bool
			s := newMeshJob(t, c.mesh, c.slots, true, func(s *meshJob) {
				s.spread = true
				s.does = func(_ int, at *agent.Agent, next string) error {
					if next != c.mesh && at.Host() == c.host && dying.Load() {
						s.c.hub.Kill(fabric.Host(c.host))
						return errHostDies
					}
					return nil
				}
			})
			defer s.end()
			s.awaitMesh(c.mesh) // as it begins
			s.awaitMesh(c.mesh) // and in other places
			dying.Store(true)
			for {
				err := s.leadingAgent().Reshape("pp=1,dp=1,tp=1", "the test")
				if err == nil {
					break
				}
				if !strings.Contains(err.Error(), "has not begun") &&
					!strings.Contains(err.Error(), "on its way") {
					t.Fatal(err)
				}
			}
			s.awaitMesh(c.then)
			if back := s.leadingAgent().Status().Back; back != "" {
				t.Errorf("a part of the state is lost: %s", back)
			}
		})
	}
}

// Replicas that should be the same and are not are found, and the state stays where it was: on a
// host that others can join, and on one that is alone.
func TestSpoiltReplica(t *testing.T) {
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprintf("alone=%t", alone), func(t *testing.T) {
			s := newMeshJob(t, "dp=2", []int{2}, true, func(s *meshJob) {
				s.alone = alone
				s.spoils = func(number int, memory []byte) {
					if number == 1 {
						memory[0] ^= 1
					}
				}
			})
			defer s.end()
			s.awaitMesh("dp=2")
			for s.leadingAgent().Reshape("dp=2,tp=1,pp=1", "the test") != nil {
			}
			if a := <-s.arrived; !strings.Contains(a.err, "a fingerprint differs") {
				t.Errorf("a replica is spoilt, and a worker is told %+v", a)
			}
			if st := s.leadingAgent().Status(); st.Mesh != "dp=2" {
				t.Errorf("the job has mesh %s", st.Mesh)
			}
		})
	}
}

// One host alone cannot plan a reshape, when all of its workers have called it: the job keeps its
// mesh and trains on, and people are told which host it was, and why. When the host can plan again,
// the job goes to the mesh that is asked for.
func TestAHostThatCannotPlanAReshape(t *testing.T) {
	for _, slots := range [][]int{{2, 2}, {1, 2, 1}} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			told := make(chan agent.Event, 100)
			var restore atomic.Pointer[func()]
			s := newMeshJob(t, "tp=4", slots, true, func(s *meshJob) {
				s.orders.Event = func(e agent.Event) { told <- e }
				s.does = func(number int, at *agent.Agent, next string) error {
					if number > 0 || next != "dp=4" || restore.Load() != nil {
						return nil
					}
					for all := 0; all != 1; all, _ = at.CountWaits() { // for this worker alone
						runtime.Gosched()
					}
					s.c.mu.Lock()
					other := s.c.agents["b"]
					s.c.mu.Unlock()
					once := sync.OnceFunc(other.ForgetLayout())
					restore.Store(&once)
					return nil
				}
				s.drops = func() { (*restore.Load())() }
			})
			defer s.end()
			s.awaitMesh("tp=4") // as it begins
			s.retryUntilBegun(func() error { return s.leadingAgent().Reshape("dp=4", "the test") })
			for e := range told {
				const why = "the job keeps mesh tp=4, since host b cannot take its part in the " +
					"reshape to mesh dp=4: no worker of this host has stated the layout"
				if e.What == "mesh" && strings.HasPrefix(e.Because, why) {
					break
				}
			}
			s.awaitMesh("tp=4") // with the state that they had
			s.retryUntilBegun(func() error { return s.leadingAgent().Reshape("dp=4", "the test") })
			s.awaitMesh("dp=4")
		})
	}
}

// A worker that comes later, on a host that has had none, states what the first ones have stated,
// or does not take part.
func TestAnotherStatement(t *testing.T) {
	s := newMeshJob(t, "dp=1", []int{1, 1}, true, func(s *meshJob) {
		s.states = func(number int, said *reshape.Statement) {
			if number > 0 {
				said.Tensors = said.Tensors[:len(said.Tensors)-1]
			}
		}
	})
	defer s.end()
	s.awaitMesh("dp=1")
	for s.leadingAgent().Reshape("dp=2", "the test") != nil {
	}
	if a := <-s.arrived; !strings.Contains(a.err, "every worker must state the same") {
		t.Errorf("a worker states other tensors, and is told %+v", a)
	}
}

// Where a part of the state is on lost workers only, the others go to the largest mesh that they
// can hold and wait for the state of a checkpoint there; also when another one is lost before they
// have it.
func TestGoesBack(t *testing.T) {
	for _, c := range []struct {
		mesh, then string
		slots      []int
		victims    []int
		host       string // that is lost in place of victims
		slow       int    // this one is lost when it should read; -1 = none is
	}{
		{"tp=3", "tp=2", []int{3}, []int{1}, "", -1},
		{"tp=3", "tp=1", []int{3}, []int{2}, "", 0},
		{"dp=2,tp=2", "dp=1,tp=2", []int{2, 2}, []int{1, 3}, "", -1},
		{"tp=3", "tp=2", []int{1, 1, 1}, nil, "c", -1},
		{"tp=3", "tp=2", []int{1, 1, 1}, nil, "a", -1},
		{"pp=2,tp=2", "pp=2,tp=1", []int{2, 2}, []int{0, 1}, "", -1},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			s := newMeshJob(t, c.mesh, c.slots, true, func(s *meshJob) {
				s.does = func(number int, at *agent.Agent, next string) error {
					switch {
					case next == "dp=3" && slices.Contains(c.victims, number), next == "" &&
						number == c.slow:
						return errDies
					case next == "dp=3" && c.host == at.Host():
						s.c.hub.Kill(fabric.Host(c.host))
						return errHostDies
					}
					return nil
				}
			})
			defer s.end()
			s.awaitMesh(c.mesh)
			for s.leadingAgent().Reshape("dp=3", "the test") != nil {
			}
			s.awaitMesh(c.then)
			for s.leadingAgent().Status().Back == "" {
				runtime.Gosched()
			}
			if back := s.leadingAgent().Status().Back; !strings.Contains(back,
				"to the checkpoint of step 3, on mesh "+c.then) ||
				!strings.Contains(back, "as only lost ones had") {
				t.Errorf("the job says %q", back)
			}
		})
	}
}
