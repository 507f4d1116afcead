package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/internal/envtest"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// childVariable says what a child of this test is to move.
const childVariable = "SHOAL_TEST_MOVE"

// childMove is a move in a process of its own.
type childMove struct {
	From, To string // paths, or URLs
	Block    int64  // bytes of a block; 0 = the default
	Format   string // format of what is written
}

// TestMain makes a move if the environment asks for one, and runs the tests otherwise.
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

// ticks is how many bytes a child writes as it goes, the last when the target has everything and is
// to be sealed and published.
const ticks = 1000

// run makes the move, and writes ticks to stdout as it goes on. It fails if it needs more memory
// than maxResident. It runs in the child, without a test.
func (m childMove) run() error {
	c, err := Open(m.From)
	if err != nil {
		return err
	}
	defer c.Close()
	form := TargetFormat{Format: m.Format}
	if m.Format == "ranks" {
		form.Spec = &layout.Spec{Shoal: layout.Version, Mesh: "dp=3,tp=2", Rules: []layout.Rule{
			{Match: "optimizer.**norm.weight", Place: "dp=flat(optimizer)"},
			{Match: "optimizer.**", Place: "tp=shard(1), dp=flat(optimizer)"},
			{Match: "**norm.weight", Place: "dp=flat(all)"},
			{Match: "**", Place: "tp=shard(1), dp=flat(all)"}}}
	}
	out, _, err := c.Output(form)
	if err != nil {
		return err
	}
	told := int64(0)
	ctx := whileMoving(context.Background(), func(done, all int64) {
		for ; told < done*ticks/all; told++ {
			os.Stdout.Write([]byte{'.'})
		}
	})
	if _, err = Move(ctx, c, out, m.To,
		Options{Workers: 2, Seal: true, blockBytes: m.Block}); err != nil {
		return err
	}
	used, err := residentKiB("self")
	if err == nil && used > maxResident {
		err = fmt.Errorf("%.0f KiB were resident, more than %d", used, maxResident)
	}
	fmt.Fprintf(os.Stderr, "%.0f KiB were resident\n", used)
	return err
}

// writeModel writes random matrices of so many rows and 512 columns as a safetensors file, and
// returns how many bytes their elements have. If it cannot the test fails.
func writeModel(t testing.TB, path string, r *rand.Rand, tensors, rows int) int64 {
	var entries []safetensors.Tensor
	for i := range tensors {
		entries = append(entries,
			safetensors.Tensor{Name: fmt.Sprintf("layers.%d.w", i), DType: tensor.BF16,
				Shape: tensor.Shape{rows, 512}})
	}
	return writeRandom(t, path, r.Uint64(), entries)
}

// TestKilled kills a process that moves a checkpoint with SIGKILL at random moments and starts it
// again, until it is done. As long as it is not, nothing is there under the name; then everything
// is, bit by bit. KILLS says how many are killed; SEED repeats the choices. With GB it is one move
// of so many gigabytes of a decoder with Adam that is killed as often, else several of 34 MB that
// are killed 4 times each. Twice as much must be free on the disk.
func TestKilled(t *testing.T) {
	kills, gb, each := int(envtest.Number(t, "KILLS", 4)), int(envtest.Number(t, "GB", 0)), 4
	k := killer{t: t, rand: rand.New(rand.NewPCG(envtest.Seed(t), 1)), left: kills}
	dir := t.TempDir()
	m := childMove{From: filepath.Join(dir, "model.safetensors"), To: filepath.Join(dir, "want"),
		Block: 4096, Format: "ranks"}
	bytes := int64(0)
	if gb == 0 {
		bytes = writeModel(t, m.From, k.rand, 8, 4096)
	} else {
		bytes = writeRandom(t, m.From, k.rand.Uint64(),
			decoderTensors(max(1, (gb*1e9-embedding)/layer)))
		each, m.Block = kills, 0
	}
	rounds := k.killMoves(m, each)
	t.Logf("%d moves of %.1f GB, %d processes killed, of which %d when everything was in place: "+
		"%.1f GB of work begun again; peak resident memory %d MiB; a move alone takes %v",
		rounds, float64(bytes)/1e9, kills-k.left, k.sealing, k.again*float64(bytes)/1e9, k.peak>>10,
		k.takes.Round(time.Millisecond))
	if k.peak > maxResident {
		t.Errorf("a process had %d KiB resident, more than %d", k.peak, maxResident)
	}
}

// TestKilledTorchDist is TestKilled for a checkpoint of Megatron-Core, in which the layers of a
// model become parts of one tensor.
func TestKilledTorchDist(t *testing.T) {
	seed := envtest.Seed(t)
	k := killer{t: t, rand: rand.New(rand.NewPCG(seed, 1)), left: 3}
	dir := t.TempDir()
	m := childMove{From: filepath.Join(dir, "model.safetensors"), To: filepath.Join(dir, "want"),
		Block: 4096, Format: "torch_dist"}
	var entries []safetensors.Tensor
	for i := range 8 {
		entries = append(entries,
			safetensors.Tensor{
				Name:  fmt.Sprintf("model.decoder.layers.%d.mlp.linear_fc2.weight", i),
				DType: tensor.BF16, Shape: tensor.Shape{2048, 512}})
	}
	writeRandom(t, m.From, seed, entries)
	k.killMoves(m, k.left)
}

// maxResident is how much memory a process may have, in KiB.
const maxResident = 512 << 10

// killer kills processes that move a checkpoint. The goroutine of the test uses it; its methods
// wait for the processes, and fail the test when one fails that was not killed.
type killer struct {
	t       *testing.T
	rand    *rand.Rand
	left    int           // kills that are still to come
	takes   time.Duration // time of a move that nobody disturbs
	seal    time.Duration // part of that after everything is in place
	peak    uint64        // most KiB of a process that was killed; the others look themselves
	sealing int           // kills after everything was in place
	again   float64       // sum of the shares of the move in place when a process was killed
}

// timeMove makes a move that nobody disturbs, and sets takes and seal.
func (k *killer) timeMove(m childMove) {
	started := time.Now()
	cmd, ticking, said := k.startChild(m)
	if _, err := io.ReadFull(ticking, make([]byte, ticks)); err != nil {
		k.t.Fatal(err, cmd.Wait(), said)
	}
	moved := time.Now()
	if err := cmd.Wait(); err != nil {
		k.t.Fatalf("%v: %s", err, said)
	}
	k.takes, k.seal = time.Since(started), time.Since(moved)
}

// killMoves moves the checkpoint undisturbed, and then anew until as many processes are killed as
// are left, at most each in one move. It returns how many moves that took.
func (k *killer) killMoves(m childMove, each int) (n int) {
	k.timeMove(m)
	want, dir := fileHashes(k.t, m.To), filepath.Dir(m.To)
	for ; k.left > 0; n++ {
		if err := os.RemoveAll(m.To); err != nil { // there is room for one
			k.t.Fatal(err)
		}
		m.To = filepath.Join(dir, fmt.Sprint("to", n))
		k.killMove(m, min(each, k.left), want)
	}
	return n
}

// killMove kills a move n times, at moments that come later and later in the mean so that it comes
// to its end, and lets it end. It checks that nothing is published before, and then everything:
// files with the hashes in want, by name.
func (k *killer) killMove(m childMove, n int, want map[string]string) {
	for i, done := 0, false; !done; i++ {
		cmd, ticking, said := k.startChild(m)
		after, late := k.drawMoment(i, n)
		seen, _ := io.CopyN(io.Discard, ticking, int64(after))
		var used atomic.Uint64
		kill := time.AfterFunc(late, func() {
			if i < n {
				// 0 if it has ended, and has said it
				kib, _ := residentKiB(strconv.Itoa(cmd.Process.Pid))
				used.Store(uint64(kib))
				cmd.Process.Kill()
			}
		})
		err := cmd.Wait()
		kill.Stop()
		k.peak = max(k.peak, used.Load())
		switch {
		case err == nil:
		case cmd.ProcessState.Exited():
			k.t.Fatalf("%v: %s", err, said)
		default:
			k.left--
			k.again += float64(seen) / ticks
			if after == ticks {
				k.sealing++
			}
		}
		_, published := os.Lstat(m.To)
		_, partial := os.Lstat(m.To + PartialSuffix)
		if published == nil {
			if diff := cmp.Diff(want, fileHashes(k.t, m.To)); diff != "" {
				k.t.Fatalf("files and their hashes:\n%s", diff)
			}
		}
		// When nothing is left of the move but its result, it was killed at its very end.
		if done = published == nil && partial != nil; err == nil && !done {
			k.t.Fatalf("%s: %v; %s: %v", m.To, published, m.To+PartialSuffix, partial)
		}
	}
}

// drawMoment draws when kill i of n comes: after so many ticks and a time. Before the first tick
// the move is prepared, after the last it is sealed and published.
func (k *killer) drawMoment(i, n int) (after int, late time.Duration) {
	const early = ticks / 20
	after, late = k.rand.IntN(early+1+ticks*3*(i+1)/(2*n))-early, k.takes/ticks
	switch {
	case after <= 0:
		after, late = 0, k.takes/4
	case after >= ticks:
		after, late = ticks, k.seal
		if i < n-1 {
			late /= 2 // or it might be published before its time
		}
	}
	return after, time.Duration(k.rand.Int64N(int64(late) + 1))
}

// startChild starts a move in a process, and returns its ticks and what it writes to stderr, which
// is whole once the caller has called Wait on cmd.
func (k *killer) startChild(m childMove) (cmd *exec.Cmd, ticking io.Reader, said *bytes.Buffer) {
	cmd, said = childCommand(k.t, m), &bytes.Buffer{}
	cmd.Stderr = said
	ticking, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return cmd, ticking, said
}

// childCommand returns the command of a process that makes a move: this test binary, with
// childVariable set.
func childCommand(t testing.TB, m childMove) *exec.Cmd {
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	return cmd
}

// fileHashes returns the SHA-256 of every file in a folder, in hexadecimal, by name. With fewer
// than three files the test fails.
func fileHashes(t testing.TB, folder string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := fs.WalkDir(os.DirFS(folder), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.Open(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		_, err = io.Copy(h, f)
		found[name] = hex.EncodeToString(h.Sum(nil))
		return err
	})
	if err != nil || len(found) < 3 {
		t.Fatalf("%d files: %v", len(found), err)
	}
	return found
}
