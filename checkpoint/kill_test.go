package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/tensor/safetensors"
)

// childVariable says what a child of this test is to move.
const childVariable = "SHOAL_TEST_MOVE"

// childMove is a move in a process of its own.
type childMove struct{ From, To string }

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		var c childMove
		err := json.Unmarshal([]byte(text), &c)
		if err == nil {
			err = c.run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func (m childMove) run() error {
	c, err := Open(m.From)
	if err != nil {
		return err
	}
	defer c.Close()
	spec := &layout.Spec{Shoal: layout.Version, Mesh: "dp=3,tp=2", Rules: []layout.Rule{{Match: "**", Place: "tp=shard(1), dp=flat(all)"}}}
	out, _, err := c.Lay(Form{Format: "ranks", Spec: spec})
	if err != nil {
		return err
	}
	_, err = Move(context.Background(), c, out, m.To, Options{Workers: 2, Seal: true, block: 4096})
	return err
}

// writeModel writes random matrices as a safetensors file.
func writeModel(t testing.TB, path string, r *rand.Rand, tensors, rows int) {
	var entries []safetensors.Tensor
	for i := range tensors {
		entries = append(entries, safetensors.Tensor{Name: fmt.Sprintf("layers.%d.w", i), DType: tensor.BF16, Shape: tensor.Shape{rows, 512}})
	}
	h, err := safetensors.Layout(entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for int64(len(b)) < h.Size() {
		b = append(b, byte(r.Uint32()))
	}
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
}

// TestKilled kills a process that moves a checkpoint with SIGKILL at random moments and starts it again, until it is done.
// As long as it is not, nothing is there under the name; then everything is, bit by bit. KILLS says how many are
// killed; SEED repeats the choices.
func TestKilled(t *testing.T) {
	kills, seed := 4, uint64(time.Now().UnixNano())
	for name, set := range map[string]func(uint64){"KILLS": func(n uint64) { kills = int(n) }, "SEED": func(n uint64) { seed = n }} {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			set(n)
		}
	}
	t.Logf("SEED=%d", seed)
	r, dir := rand.New(rand.NewPCG(seed, 1)), t.TempDir()
	from, want := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "want")
	writeModel(t, from, r, 8, 4096)
	started := time.Now()
	if out, err := child(t, childMove{from, want}).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	takes := time.Since(started)
	for round := 0; kills > 0; round++ {
		to := filepath.Join(dir, fmt.Sprint("to", round))
		for done := false; !done; {
			cmd := child(t, childMove{from, to})
			var said bytes.Buffer
			cmd.Stderr = &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			kill := time.AfterFunc(time.Duration(r.Int64N(int64(takes))), func() { cmd.Process.Kill() })
			err := cmd.Wait()
			kill.Stop()
			if err != nil && cmd.ProcessState.Exited() {
				t.Fatalf("%v: %s", err, &said)
			} else if err != nil {
				kills--
			}
			_, published := os.Lstat(to)
			_, partial := os.Lstat(to + PartialSuffix)
			if published == nil {
				same(t, want, to)
			}
			// When nothing is left of the move but its result, it was killed behind its last step.
			if done = published == nil && partial != nil; err == nil && !done {
				t.Fatalf("%s: %v; %s: %v", to, published, to+PartialSuffix, partial)
			}
		}
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
	}
}

func child(t testing.TB, m childMove) *exec.Cmd {
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	return cmd
}

// same demands that two folders have the same files.
func same(t testing.TB, want, got string) {
	t.Helper()
	count := 0
	err := fs.WalkDir(os.DirFS(want), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		count++
		a, err := os.ReadFile(filepath.Join(want, name))
		if err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(got, name))
		if err == nil && string(a) != string(b) {
			err = fmt.Errorf("%s differs", name)
		}
		return err
	})
	if err != nil || count < 3 {
		t.Fatalf("%d files: %v", count, err)
	}
}
