// Package snapshottest holds the tests that every store for checkpoints of jobs must pass, and
// functions to write checkpoints in tests. All are for the goroutine of the test, which they fail
// where the store does not do what it must.
package snapshottest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/tensor"
)

// A Kind is an implementation of snapshot.Store under test. Its methods use the store and wait for
// it, on the goroutine of the test.
type Kind struct {
	// Open returns the folder of a new, empty store that keeps two checkpoints.
	Open func(t *testing.T) snapshot.Folder
	// Fetch returns a folder of the file system in which a sealed checkpoint can be read.
	Fetch func(t *testing.T, f snapshot.Folder, a snapshot.Attempt) snapshot.Folder
	// Files lists all files of the store, without links.
	Files func(t *testing.T, f snapshot.Folder) []string
}

// Lines collects what a folder logs. Any goroutine may use it.
type Lines struct {
	mu   sync.Mutex
	said []string // guarded by mu
}

// Say adds a line.
func (l *Lines) Say(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, line)
}

// String returns the lines so far, each but the last with a line feed.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.said, "\n")
}

// Bytes is the size in bytes of what State returns: several uploads or blocks for each worker.
const Bytes = 17 << 20

// State returns the description of a step's checkpoint and the bytes of its one tensor, which
// follow from the step. The caller may change both.
func State(step uint64, workers int) (*snapshot.State, [][]byte) {
	s := &snapshot.State{Step: step, Workers: workers, Notes: json.RawMessage("{}"),
		Tensors: []snapshot.Tensor{{Name: "w", DType: tensor.F32, Shape: tensor.Shape{Bytes / 4}}}}
	memory := make([]byte, Bytes)
	_, _ = rand.NewChaCha8([32]byte{byte(step)}).Read(memory) // never fails
	return s, [][]byte{memory}
}

// SmallState is State with so few bytes, 4000, that each worker's part is sent at once.
func SmallState(step uint64, workers int) (*snapshot.State, [][]byte) {
	s, memory := State(step, workers)
	s.Tensors[0].Shape = tensor.Shape{1000}
	return s, [][]byte{memory[0][:4000]}
}

// Part returns the part that a rank writes of the checkpoint s in f, with a seed; memory holds the
// bytes of the tensors. It is checked and not written. A part that cannot be fails the test.
func Part(t testing.TB, f snapshot.Folder, s *snapshot.State, memory [][]byte, seed uint64,
	rank int) *snapshot.Part {
	t.Helper()
	text, err := s.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &snapshot.Part{Folder: f, Seed: seed, Rank: rank, State: text,
		Own: json.RawMessage(fmt.Sprintf(`{"noise": %d}`, rank))}
	for _, run := range s.Share(rank) {
		p.Body = append(p.Body, memory[run.Tensor][run.From:run.To]...)
	}
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	return p
}

// Write writes the parts of several ranks at once, each on a goroutine of its own, and waits for
// them; memory holds the bytes of the tensors. What becomes of the parts f logs: that does not fail
// the test.
func Write(t testing.TB, f snapshot.Folder, s *snapshot.State, memory [][]byte, seed uint64,
	ranks ...int) {
	t.Helper()
	var parts []*snapshot.Part
	for _, rank := range ranks {
		parts = append(parts, Part(t, f, s, memory, seed, rank))
	}
	if err := group.Share(t.Context(), "part", len(parts), len(parts), func() func(int) error {
		return func(i int) error { parts[i].Write(); return nil }
	}); err != nil {
		t.Fatal(err)
	}
}

// SealedSteps returns the steps of the sealed checkpoints in f, the newest first.
func SealedSteps(t testing.TB, f snapshot.Folder) (steps []uint64) {
	t.Helper()
	sealed, err := f.Sealed()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range sealed {
		steps = append(steps, a.Step)
	}
	return steps
}

// Run runs all tests as parts of the test t, on stores of kind k.
func Run(t *testing.T, k Kind) {
	for name, f := range map[string]func(*testing.T){
		"what is written is read":           k.testReadBack,
		"old ones are removed":              k.testPruning,
		"a part is missing":                 k.testLostPart,
		"receipts are wrong":                k.testWrongReceipts,
		"damage is noticed and set aside":   k.testQuarantine,
		"sealed and abandoned at once":      k.testRace,
		"the last receipt and then nothing": k.testUnsealed,
		"sealed by another meanwhile":       k.testSealedMeanwhile,
		"whether it can be written":         k.testTryWrite,
	} {
		t.Run(name, f)
	}
}

// openFolder opens a store for one test and returns its folder, and what that logs.
func (k Kind) openFolder(t *testing.T) (snapshot.Folder, *Lines) {
	f, l := k.Open(t), &Lines{}
	f.Log = l.Say
	return f, l
}

// testReadBack checks that a checkpoint by two workers is sealed once, and read as it was written.
func (k Kind) testReadBack(t *testing.T) {
	f, l := k.openFolder(t)
	s, memory := State(5, 2)
	Write(t, f, s, memory, 55, 0, 1)
	if strings.Count(l.String(), "is sealed") != 1 {
		t.Fatal(l)
	}
	sealed, err := f.Sealed()
	if err != nil || len(sealed) != 1 {
		t.Fatal(sealed, err)
	}
	found, err := k.Fetch(t, f, sealed[0]).Open(5)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, Bytes)
	if n, err := found.Read(t.Context(), [][]byte{got}, 0, 1); err != nil || n != found.Blocks ||
		!bytes.Equal(got, memory[0]) {
		t.Errorf("%d of %d blocks, %v; the same bytes: %v", n, found.Blocks, err,
			bytes.Equal(got, memory[0]))
	}
}

// testPruning checks that only the newest checkpoints are kept.
func (k Kind) testPruning(t *testing.T) {
	f, l := k.openFolder(t)
	for step := range uint64(5) {
		s, memory := SmallState(step+1, 2)
		Write(t, f, s, memory, step+100, 0, 1)
	}
	if steps := SealedSteps(t, f); !slices.Equal(steps, []uint64{5, 4}) {
		t.Errorf("sealed are %v: %s", steps, l)
	}
	if files := k.Files(t, f); len(files) != 2*4 {
		t.Errorf("left are %q", files)
	}
}

// testLostPart checks that a checkpoint without one of its parts is never sealed, and is removed by
// the next one.
func (k Kind) testLostPart(t *testing.T) {
	f, l := k.openFolder(t)
	s, memory := SmallState(5, 3)
	Write(t, f, s, memory, 55, 0, 2)
	if steps := SealedSteps(t, f); len(steps) > 0 || l.String() != "" {
		t.Fatalf("%v is sealed without a part: %s", steps, l)
	}
	again, _ := SmallState(5, 3)
	Write(t, f, again, memory, 56, 1) // a part of another attempt at the step is none of this one
	if steps := SealedSteps(t, f); len(steps) > 0 {
		t.Fatalf("%v is sealed of two attempts: %s", steps, l)
	}
	next, memory := SmallState(7, 2)
	Write(t, f, next, memory, 57, 0, 1) // worker 0 takes away what is left of both
	if steps := SealedSteps(t, f); !slices.Equal(steps, []uint64{7}) ||
		strings.Count(l.String(), "abandoned: a worker was lost") != 2 {
		t.Errorf("sealed are %v: %s", steps, l)
	}
	if files := k.Files(t, f); len(files) != 4 {
		t.Errorf("left are %q", files)
	}
}

// testWrongReceipts checks that an attempt with a receipt that cannot be right is removed.
func (k Kind) testWrongReceipts(t *testing.T) {
	for _, receipt := range []string{`{"files":`,
		`{"files":[{"name":"../x","size":0,"sha256":[]}],"sums":{}}`,
		`{"files":[],"sums":{"1":5}}`} {
		f, l := k.openFolder(t)
		s, memory := SmallState(5, 2)
		Write(t, f, s, memory, 55, 0)
		k.replaceFile(t, f, snapshot.Attempt{Step: 5, Seed: 55}, ".part-00000-of-00002.json",
			receipt)
		Write(t, f, s, memory, 55, 1)
		if err := f.CleanUp(); err != nil {
			t.Error(err)
		}
		if steps, left := SealedSteps(t, f), k.Files(t, f); len(steps) > 0 || len(left) > 0 ||
			!strings.Contains(l.String(), "step 5 in "+f.Root+" is abandoned") {
			t.Errorf("%s: sealed are %v, left are %q: %s", receipt, steps, left, l)
		}
	}
}

// replaceFile writes a file of an attempt that is not sealed, in place of the one that is there.
func (k Kind) replaceFile(t *testing.T, f snapshot.Folder, a snapshot.Attempt, name, text string) {
	t.Helper()
	if err := f.StoreOrLocal().Put(t.Context(), a, name, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// testQuarantine checks that a checkpoint in quarantine is kept and not listed, and another one of
// the same step too.
func (k Kind) testQuarantine(t *testing.T) {
	f, _ := k.openFolder(t)
	for step := range uint64(2) {
		s, memory := SmallState(step+1, 1)
		Write(t, f, s, memory, step+100, 0)
	}
	sealed, err := f.Sealed()
	if err != nil || len(sealed) != 2 {
		t.Fatal(sealed, err)
	}
	f.Quarantine(sealed[0])
	if steps := SealedSteps(t, f); !slices.Equal(steps, []uint64{1}) {
		t.Errorf("sealed are %v", steps)
	}
	s, memory := SmallState(2, 1)
	Write(t, f, s, memory, 202, 0)
	again, err := f.Sealed()
	if err != nil || len(again) != 2 {
		t.Fatal(again, err)
	}
	f.Quarantine(again[0])
	if steps := SealedSteps(t, f); !slices.Equal(steps, []uint64{1}) {
		t.Errorf("with a step that is damaged again, sealed are %v", steps)
	}
	if err := f.CleanUp(); err != nil || len(k.Files(t, f)) < 9 {
		t.Errorf("what was set aside is lost: %v, %q", err, k.Files(t, f))
	}
}

// testRace removes an attempt on one host while another writes its last part: the attempt is either
// sealed and complete, or gone.
func (k Kind) testRace(t *testing.T) {
	for i := range uint64(6) {
		f, l := k.openFolder(t)
		s, memory := SmallState(5, 2)
		Write(t, f, s, memory, 55, 0)
		last := Part(t, f, s, memory, 55, 1)
		both := []func() error{func() error { last.Write(); return nil }, f.CleanUp}
		if i%2 == 0 {
			slices.Reverse(both)
		}
		if err := group.Share(t.Context(), "race", 2, 2, func() func(int) error {
			return func(i int) error { return both[i]() }
		}); err != nil {
			t.Fatal(err)
		}
		sealed, err := f.Sealed()
		if err != nil {
			t.Fatal(err)
		}
		if len(sealed) == 1 {
			found, err := k.Fetch(t, f, sealed[0]).Open(5)
			if err == nil {
				_, err = found.Read(t.Context(), [][]byte{make([]byte, 4000)}, 0, 1)
			}
			if err != nil {
				t.Errorf("sealed, and not whole: %v: %s", err, l)
			}
		}
		next, memory := SmallState(6, 1)
		Write(t, f, next, memory, 66, 0)
		if files := k.Files(t, f); len(files) != 3+4*len(sealed) {
			t.Errorf("left are %q of %d sealed before: %s", files, len(sealed), l)
		}
	}
}

// testUnsealed has all workers die after their receipts: the next to come seals.
func (k Kind) testUnsealed(t *testing.T) {
	f, l := k.openFolder(t)
	s, memory := SmallState(5, 2)
	dying := f
	dying.Store = killed{f.StoreOrLocal()}
	Write(t, dying, s, memory, 55, 0, 1)
	if steps := SealedSteps(t, f); len(steps) > 0 {
		t.Fatalf("sealed are %v", steps)
	}
	if err := f.CleanUp(); err != nil {
		t.Fatal(err)
	}
	if steps := SealedSteps(t, f); !slices.Equal(steps, []uint64{5}) ||
		!strings.Contains(l.String(), "it is sealed now") || len(k.Files(t, f)) != 4 {
		t.Errorf("sealed are %v, left are %q: %s", steps, k.Files(t, f), l)
	}
}

// testSealedMeanwhile has another host seal what was listed as not sealed: nobody is told that it
// is abandoned.
func (k Kind) testSealedMeanwhile(t *testing.T) {
	f, l := k.openFolder(t)
	s, memory := SmallState(5, 1)
	Write(t, f, s, memory, 55, 0)
	late := f
	late.Store = outdated{f.StoreOrLocal()}
	if err := late.CleanUp(); err != nil {
		t.Fatal(err)
	}
	if steps := SealedSteps(t, f); !slices.Equal(steps, []uint64{5}) ||
		strings.Contains(l.String(), "abandoned") {
		t.Errorf("sealed are %v: %s", steps, l)
	}
}

// testTryWrite checks that a test write leaves nothing behind.
func (k Kind) testTryWrite(t *testing.T) {
	f, _ := k.openFolder(t)
	if err := f.TryWrite(); err != nil {
		t.Fatal(err)
	}
	if files := k.Files(t, f); len(files) > 0 {
		t.Errorf("%q are left", files)
	}
}

// An outdated is a store whose list is out of date.
type outdated struct{ snapshot.Store }

// List does not know yet that the attempt is sealed.
func (outdated) List(context.Context) (sealed, unsealed []snapshot.Attempt, err error) {
	return nil, []snapshot.Attempt{{Step: 5, Seed: 55}}, nil
}

// A killed is a store in which this process seals and removes nothing.
type killed struct{ snapshot.Store }

// errKilled is the error of a call after which a worker of the test does nothing more.
var errKilled = errors.New("killed")

// Seal fails.
func (killed) Seal(context.Context, snapshot.Attempt, []byte) error { return errKilled }

// Abandon fails.
func (killed) Abandon(context.Context, snapshot.Attempt, func([]string) bool) (bool, error) {
	return false, errKilled
}
