package jobs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/checkpoint/jobs"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/tensor"
)

// lines collects what people are told.
type lines struct {
	mu   sync.Mutex
	said []string
}

func (l *lines) say(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, line)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.said, "\n")
}

// random draws a state and its bytes.
func random(r *rand.Rand, step uint64, workers int) (*jobs.State, [][]byte) {
	s := &jobs.State{Step: step, Cursor: []byte{1, 2, 3}, Workers: workers, Notes: json.RawMessage(`{"rate":0.1}`)}
	var memory [][]byte
	for i := range r.IntN(6) {
		t := jobs.Tensor{Name: fmt.Sprintf("t/%d", i), DType: []tensor.DType{tensor.F32, tensor.BF16, tensor.U8, tensor.Bool}[r.IntN(4)], Shape: tensor.Shape{}}
		for range r.IntN(4) {
			t.Shape = append(t.Shape, []int{0, 1, 1, 2, 7, 100, 3000}[r.IntN(7)])
		}
		if t.Bytes() > 40<<20 {
			t.Shape = tensor.Shape{5, 3}
		}
		if n := t.Bytes(); n > 0 && r.IntN(3) == 0 {
			t.Cuts = []int{0, n}
			for range workers - 1 {
				t.Cuts = append(t.Cuts, r.IntN(n+1)/row(t)*row(t))
			}
			slices.Sort(t.Cuts)
		}
		b := make([]byte, t.Bytes())
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		s.Tensors, memory = append(s.Tensors, t), append(memory, b)
	}
	return s, memory
}

// row is the bytes of a step along the first dimension longer than 1.
func row(t jobs.Tensor) int {
	for _, n := range t.Shape {
		if n > 1 {
			return t.Bytes() / n
		}
	}
	return t.Bytes()
}

// part is the part of a rank, as a worker makes it.
func part(t testing.TB, f jobs.Folder, s *jobs.State, memory [][]byte, seed uint64, rank int) *jobs.Part {
	t.Helper()
	text, err := s.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &jobs.Part{Folder: f, Seed: seed, Rank: rank, State: text, Own: json.RawMessage(fmt.Sprintf(`{"noise": %d}`, rank))}
	for _, run := range s.Share(rank) {
		p.Body = append(p.Body, memory[run.Tensor][run.From:run.To]...)
	}
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	return p
}

// write has several workers write their parts at once.
func write(t testing.TB, f jobs.Folder, s *jobs.State, memory [][]byte, ranks ...int) {
	t.Helper()
	var parts []*jobs.Part
	for _, rank := range ranks {
		parts = append(parts, part(t, f, s, memory, s.Step*77, rank))
	}
	if err := group.Share(t.Context(), "part", len(parts), len(parts), func() func(int) error {
		return func(i int) error { parts[i].Write(); return nil }
	}); err != nil {
		t.Fatal(err)
	}
}

func all(n int) (ranks []int) {
	for r := range n {
		ranks = append(ranks, r)
	}
	return ranks
}

// read reads the newest checkpoint as so many workers do together, and returns what the last of them got.
func read(t testing.TB, f jobs.Folder, turns int) (*jobs.Sealed, [][]byte, error) {
	t.Helper()
	steps, err := f.Sealed()
	if err != nil || len(steps) == 0 {
		t.Fatalf("sealed: %v, %v", steps, err)
	}
	s, err := f.Open(steps[0].Step)
	if err != nil {
		return nil, nil, err
	}
	var memory [][]byte
	compared := 0
	for turn := range turns {
		memory = nil
		for _, x := range s.State.Tensors {
			memory = append(memory, make([]byte, x.Bytes()))
		}
		n, err := s.Read(t.Context(), memory, turn, turns)
		if err != nil {
			return nil, nil, err
		}
		compared += n
	}
	if compared != s.Blocks {
		t.Errorf("%d workers compared %d of %d blocks", turns, compared, s.Blocks)
	}
	return s, memory, nil
}

// TestWhatIsWrittenIsRead writes random states with random workers; SEED repeats the choices.
func TestWhatIsWrittenIsRead(t *testing.T) {
	seed := seedOf(t)
	r := rand.New(rand.NewPCG(seed, 1))
	for step := range uint64(40) {
		var l lines
		f := jobs.Folder{Root: filepath.Join(t.TempDir(), "c"), Keep: 2, Say: l.say}
		s, memory := random(r, step+1, 1+r.IntN(5))
		write(t, f, s, memory, all(s.Workers)...)
		if strings.Count(l.String(), "is sealed") != 1 {
			t.Fatalf("step %d: %s", step, &l)
		}
		got, found, err := read(t, f, 1+r.IntN(4))
		if err != nil {
			t.Fatal(err)
		}
		if got.State.Step != s.Step || string(got.State.Notes) != string(s.Notes) || !bytes.Equal(got.State.Cursor, s.Cursor) || len(got.Own) != s.Workers {
			t.Errorf("got %+v, own %v", got.State, got.Own)
		}
		for i := range memory {
			if !bytes.Equal(memory[i], found[i]) {
				t.Errorf("tensor %d of %v differs", i, s.Tensors)
			}
		}
		damage, _, err := checkpoint.Verify(t.Context(), filepath.Join(f.Root, "latest"), 2)
		if len(s.Tensors) > 0 && (err != nil || len(damage) > 0) {
			t.Errorf("%v: %v, %v", s.Tensors, damage, err)
		}
	}
}

func TestSharesAreWholeRowsAndAllOfThem(t *testing.T) {
	r := rand.New(rand.NewPCG(seedOf(t), 2))
	for range 300 {
		s, memory := random(r, 1, 1+r.IntN(6))
		ends := make([]int, len(memory))
		seen := make([]bool, len(memory))
		for rank := range s.Workers {
			for _, run := range s.Share(rank) {
				x := s.Tensors[run.Tensor]
				if x.Cuts != nil && (run.From != x.Cuts[rank] || run.To != x.Cuts[rank+1]) {
					t.Fatalf("%+v: rank %d has %v", x, rank, run)
				}
				if row := row(x); run.From != ends[run.Tensor] || row > 0 && run.From%row != 0 {
					t.Fatalf("%+v: rank %d has %v", s.Tensors, rank, run)
				}
				ends[run.Tensor], seen[run.Tensor] = run.To, true
			}
		}
		for i, b := range memory {
			if ends[i] != len(b) || !seen[i] {
				t.Fatalf("%+v: tensor %d is written up to %d", s.Tensors, i, ends[i])
			}
		}
	}
}

func TestDamageIsNoticed(t *testing.T) {
	r := rand.New(rand.NewPCG(seedOf(t), 3))
	f := jobs.Folder{Root: t.TempDir(), Keep: 1, Say: new(lines).say}
	s := &jobs.State{Step: 5, Workers: 2, Notes: json.RawMessage("{}"), Tensors: []jobs.Tensor{{Name: "w", DType: tensor.F64, Shape: tensor.Shape{1000}}}}
	write(t, f, s, [][]byte{make([]byte, 8000)}, 0, 1)
	files, err := filepath.Glob(filepath.Join(f.Path(5), "*"))
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for range 30 {
			broken := slices.Clone(whole)
			if r.IntN(3) == 0 {
				broken = broken[:r.IntN(len(broken))]
			} else {
				broken[r.IntN(len(broken))] ^= byte(1 + r.IntN(255))
			}
			if err := os.WriteFile(name, broken, 0o666); err != nil {
				t.Fatal(err)
			}
			if _, _, err := read(t, f, 1); err == nil && !(strings.HasSuffix(name, "manifest.json") && json.Valid(broken)) {
				t.Errorf("%s with other bytes was read", name)
			}
		}
		if err := os.WriteFile(name, whole, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAWorkerThatIsLost has a part missing, in several stages.
func TestAWorkerThatIsLost(t *testing.T) {
	var l lines
	f := jobs.Folder{Root: t.TempDir(), Keep: 2, Say: l.say}
	s := &jobs.State{Step: 5, Workers: 3, Notes: json.RawMessage("{}"), Tensors: []jobs.Tensor{{Name: "w", DType: tensor.F64, Shape: tensor.Shape{1000}}}}
	memory := [][]byte{make([]byte, 8000)}
	write(t, f, s, memory, 0, 2)
	if steps, _ := f.Sealed(); len(steps) > 0 || l.String() != "" {
		t.Fatalf("%v is sealed without a part: %s", steps, &l)
	}
	write(t, f, s, memory, 1) // its agent was slow
	next := *s
	next.Step, next.Workers = 7, 2
	write(t, f, &next, memory, 1)
	late := next
	late.Step = 9
	write(t, f, &late, memory, 0, 1) // worker 0 takes away what is left of step 7
	if steps, _ := f.Sealed(); !slices.Equal(steps, []jobs.Attempt{{Step: 9}, {Step: 5}}) || !strings.Contains(l.String(), "step 7 in "+f.Root+" is abandoned: a worker was lost") {
		t.Errorf("sealed %v: %s", steps, &l)
	}
	p := part(t, f, &next, memory, 7*77, 0)
	if err := os.WriteFile(filepath.Join(f.Root, ".staging-000000000007-000000000000021b"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	p.Write()
	if !strings.Contains(l.String(), "step 7 in "+f.Root+" is abandoned, and training goes on") {
		t.Error(&l)
	}
}

// TestSettled leaves a checkpoint in every state that a kill can leave it in.
func TestSettled(t *testing.T) {
	memory := [][]byte{make([]byte, 8000)}
	s := &jobs.State{Step: 5, Workers: 1, Notes: json.RawMessage("{}"), Tensors: []jobs.Tensor{{Name: "w", DType: tensor.F64, Shape: tensor.Shape{1000}}}}
	for _, keep := range []string{"", ".part-00000-of-00001.json"} {
		var l lines
		f := jobs.Folder{Root: t.TempDir(), Keep: 2, Say: l.say}
		write(t, f, s, memory, 0)
		// As before the rename.
		staging := filepath.Join(f.Root, ".staging-000000000005-0000000000000181")
		if err := os.Rename(f.Path(5), staging); err != nil {
			t.Fatal(err)
		}
		if keep != "" {
			if err := os.WriteFile(filepath.Join(staging, keep), []byte("{}"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Settle(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := read(t, f, 1); err != nil || !strings.Contains(l.String(), "it is sealed now") {
			t.Errorf("%v: %s", err, &l)
		}
		if left, _ := filepath.Glob(filepath.Join(f.Path(5), ".part*")); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	}
}

// TestWrongReceipts damages what one worker has left: nothing is sealed with it, and the next to come removes it.
func TestWrongReceipts(t *testing.T) {
	s := &jobs.State{Step: 5, Workers: 2, Notes: json.RawMessage("{}"), Tensors: []jobs.Tensor{{Name: "w", DType: tensor.F64, Shape: tensor.Shape{1000}}}}
	memory := [][]byte{make([]byte, 8000)}
	for _, receipt := range []string{
		`{"files":`,
		`{"files":[{"name":"../x","size":0,"sha256":[]}],"sums":{}}`,
		`{"files":[{"name":"x","size":1,"sha256":[]}],"sums":{}}`,
		`{"files":[{"name":"x","size":1,"sha256":["00"]}],"sums":{}}`,
		`{"files":[],"sums":{"1":5}}`,
		`{"files":[],"sums":{"0":2305843009213693952}}`,
	} {
		var l lines
		f := jobs.Folder{Root: t.TempDir(), Keep: 2, Say: l.say}
		write(t, f, s, memory, 0)
		left, err := filepath.Glob(filepath.Join(f.Root, ".staging-*", ".part-00000-of-00002.json"))
		if err != nil || len(left) != 1 {
			t.Fatal(left, err)
		}
		if err := os.WriteFile(left[0], []byte(receipt), 0o666); err != nil {
			t.Fatal(err)
		}
		write(t, f, s, memory, 1)
		if err := f.Settle(); err != nil {
			t.Error(err)
		}
		if steps, err := f.Sealed(); len(steps) > 0 || err != nil || !strings.Contains(l.String(), "step 5 in "+f.Root+" is abandoned") {
			t.Errorf("%s: sealed %v, %v: %s", receipt, steps, err, &l)
		}
	}
}

func TestWrongParts(t *testing.T) {
	s := &jobs.State{Step: 5, Workers: 2, Notes: json.RawMessage("{}"), Tensors: []jobs.Tensor{{Name: "w", DType: tensor.F64, Shape: tensor.Shape{1000}}}}
	good := func() *jobs.Part {
		return part(t, jobs.Folder{Root: "/c", Keep: 1}, s, [][]byte{make([]byte, 8000)}, 1, 0)
	}
	for want, change := range map[string]func(p *jobs.Part){
		"no absolute path":        func(p *jobs.Part) { p.Folder.Root = "c" },
		"shortest form":           func(p *jobs.Part) { p.Folder.Root = "/c/../d" },
		"checkpoints to keep":     func(p *jobs.Part) { p.Folder.Keep = 0 },
		"rank 2 in a checkpoint":  func(p *jobs.Part) { p.Rank = 2 },
		"rank -1 in a checkpoint": func(p *jobs.Part) { p.Rank = -1 },
		"no JSON object":          func(p *jobs.Part) { p.Own = json.RawMessage("[]") },
		"has 4000":                func(p *jobs.Part) { p.Body = p.Body[1:] },
		"description":             func(p *jobs.Part) { p.State = []byte("{") },
	} {
		p := good()
		change(p)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

func TestWrongCuts(t *testing.T) {
	for _, cuts := range [][]int{{0}, {0, 24}, {0, 12, 12, 24}, {0, 12, 23}, {1, 12, 24}, {0, 36, 24}, {0, 6, 24}, {-12, 0, 24}} {
		s := &jobs.State{Workers: 2, Notes: json.RawMessage("{}"), Tensors: []jobs.Tensor{{Name: "w", DType: tensor.F32, Shape: tensor.Shape{2, 3}, Cuts: cuts}}}
		if text, err := s.AppendJSON(nil); err == nil {
			t.Errorf("%v is taken: %s", cuts, text)
		}
	}
}

// FuzzState has whatever passes for a state cut into shares, each of which a part can be made of.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"shoal":"job/1","step":120,"cursor":"00","workers":4,"notes":{},"tensors":[{"name":"w","dtype":"F32","shape":[2,3],"bytes":24}]}`))
	f.Add([]byte(`{"shoal":"job/1","step":1,"cursor":"","workers":2,"notes":{"a":[1]},"tensors":[{"name":"","dtype":"BOOL","shape":[],"bytes":1},{"name":"x","dtype":"U8","shape":[0],"bytes":0}]}`))
	f.Add([]byte(`{"shoal":"job/1","step":1,"cursor":"","workers":2,"notes":{},"tensors":[{"name":"w","dtype":"F32","shape":[2,3],"bytes":24,"cuts":[0,12,24]}]}`))
	f.Add([]byte(`{"shoal":"job/1","step":1,"cursor":"","workers":65536,"notes":{},"tensors":[{"name":"w","dtype":"F64","shape":[9223372036854775807],"bytes":24}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := jobs.ParseState(text)
		if err != nil {
			return
		}
		total := 0
		for rank := range s.Workers {
			n := jobs.Bytes(s.Share(rank))
			if rank < 3 && n < 1<<20 {
				p := &jobs.Part{Folder: jobs.Folder{Root: "/", Keep: 1}, Rank: rank, State: text, Own: json.RawMessage("{}"), Body: make([]byte, n)}
				if err := p.Check(); err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
			total += n
		}
		for _, x := range s.Tensors {
			total -= x.Bytes()
		}
		if total != 0 {
			t.Errorf("the shares have %d bytes more than the state", total)
		}
	})
}

// BenchmarkWrite writes 1 GiB as two parts; TMPDIR says where. Beside the rate it has the processor time, which a busy machine does not change much.
func BenchmarkWrite(b *testing.B) {
	s := &jobs.State{Step: 5, Workers: 2, Notes: json.RawMessage("{}"), Tensors: []jobs.Tensor{{Name: "w", DType: tensor.F32, Shape: tensor.Shape{1 << 28}}}}
	memory := [][]byte{make([]byte, 1<<30)}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range memory[0] {
		memory[0][i] = byte(r.Uint32())
	}
	b.SetBytes(1 << 30)
	f := jobs.Folder{Root: b.TempDir(), Keep: 1, Say: func(line string) { b.Log(line) }}
	parts := []*jobs.Part{part(b, f, s, memory, 1, 0), part(b, f, s, memory, 1, 1)}
	var before, after syscall.Rusage
	used := func(r *syscall.Rusage) {
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, r); err != nil {
			b.Fatal(err)
		}
	}
	used(&before)
	for b.Loop() {
		if err := os.RemoveAll(f.Path(5)); err != nil {
			b.Fatal(err)
		}
		if err := group.Share(context.Background(), "part", 2, 2, func() func(int) error {
			return func(i int) error { parts[i].Write(); return nil }
		}); err != nil {
			b.Fatal(err)
		}
	}
	used(&after)
	b.ReportMetric((seconds(after.Utime)-seconds(before.Utime))/float64(b.N), "user-s/op")
	b.ReportMetric((seconds(after.Stime)-seconds(before.Stime))/float64(b.N), "sys-s/op")
}

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

func seedOf(t testing.TB) uint64 {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SEED=%d", seed)
	return seed
}
