package launcher_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/launcher"
	"github.com/shoal-ml/shoal/state/manifest"
)

// What a worker of these tests is told in its environment. runTraining sets it.
const (
	folderVariable = "NODE_TEST_FOLDER"
	stopVariable   = "NODE_TEST_STOP"   // the step before which it dies by SIGKILL
	sizeVariable   = "NODE_TEST_SIZE"   // bytes of state beside the rest
	lookerVariable = "NODE_TEST_LOOKER" // the rank that dies before it looks for checkpoints
	askVariable    = "NODE_TEST_ASK"    // the step in which rank 0 asks for the end of the job
	// the rank that dies when its part of the first checkpoint is handed to the agent
	orphanVariable = "NODE_TEST_ORPHAN"
)

const samples, batch, epochs = 300, 16, 4 // 76 steps

// trainAndCount is a worker that counts how often each sample counts, over all starts, and computes
// what depends on every step. It prints with which step it goes on, and at the end its result. It
// runs in a process of its own, on the goroutine of runWorker; an error ends that process with code
// 1.
func trainAndCount(ctx context.Context, j *client.Job) error {
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return otherwise
	}
	seen, weights, large := make([]float32, samples), make([]float64, samples),
		make([]uint8, number(sizeVariable, 1))
	t, err := client.Train(j, client.Data{Samples: samples, Batch: batch, Epochs: epochs, Seed: 3},
		client.StateOf("seen", seen), client.StateOf("weights", weights),
		client.StateOf("large", large))
	if err != nil {
		return err
	}
	if err := t.Checkpoint(
		client.Checkpoint{Folder: os.Getenv(folderVariable), Steps: 5, Keep: 100}); err != nil {
		return err
	}
	if j.Rank() == number(lookerVariable, -1) {
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return err
		}
	}
	gradient, first := make([]float64, 2*samples), true
	for t.Next(ctx) {
		if first {
			fmt.Println("FROM", t.Step())
			first = false
		}
		orphan := j.Rank() == number(orphanVariable, -1) && t.Step() > 0 && len(stagingFiles()) > 0
		if t.Step() >= number(stopVariable, math.MaxInt) || orphan {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				return err
			}
		}
		if j.Rank() == 0 && t.Step() == number(askVariable, -1) {
			job, err := control.Find(ctx, "test")
			if err != nil {
				return err
			}
			if err := job.Stop(ctx, false, "rank 0"); err != nil {
				return err
			}
		}
		clear(gradient)
		for _, s := range t.Samples() {
			if t.Weight() > 0 {
				gradient[s] = 1 / t.Weight()
			}
		}
		for i, w := range weights {
			gradient[samples+i] = math.Sin(w + float64(t.Step()))
		}
		if err := client.Commit(ctx, t, gradient); err != nil {
			return err
		}
		for i := range seen {
			if gradient[i] > 0 {
				seen[i]++
			}
			weights[i] += gradient[samples+i]
		}
		large[len(large)-1]++
	}
	if err := t.Err(); err != nil || t.Released() {
		fmt.Println("LAST", t.Step())
		return err
	}
	if i := slices.IndexFunc(seen, func(n float32) bool { return n != epochs }); i >= 0 {
		return fmt.Errorf("sample %d counted %v times", i, seen[i])
	}
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	fmt.Println("RESULT", j.Size(), t.Step(), math.Float64bits(sum), large[len(large)-1])
	return nil
}

// stagingFiles lists the folders of checkpoints that are not sealed yet, in the folder that a
// worker is told in its environment. It runs in the worker, and panics when it cannot look.
func stagingFiles() []string {
	found, err := filepath.Glob(filepath.Join(os.Getenv(folderVariable), ".staging-*"))
	if err != nil {
		panic(err)
	}
	return found
}

// trained is what a run printed.
type trained struct {
	from    int      // step with which it went on; 0 = with none, or the first
	results []string // result of each worker that came to the end
	output  string   // all of it
}

// runTraining trains with n workers until the end, or until all of them die, with checkpoints in
// folder; env are further variables of the workers. It fails the test when the run fails though env
// does not have it stopped, or the other way round.
func runTraining(t *testing.T, n int, folder string, env map[string]string) (r trained) {
	t.Helper()
	_, output, err := runWorkers(t, t.Context(), n, "train", func(c *launcher.RunConfig) {
		c.Spec.Env[folderVariable] = folder
		for name, value := range env {
			c.Spec.Env[name] = value
		}
	})
	if (err != nil) != (env[stopVariable] != "") {
		t.Fatalf("%v\n%s", err, output)
	}
	r.output = output
	if m := regexp.MustCompile(`FROM (\d+)`).FindStringSubmatch(output); m != nil {
		r.from, _ = strconv.Atoi(m[1])
	}
	for _, m := range regexp.MustCompile(`RESULT (.*)`).FindAllStringSubmatch(output, -1) {
		r.results = append(r.results, m[1])
	}
	return r
}

// A training whose workers are killed goes on from its checkpoint when it is started again, and
// ends as one that was never stopped.
func TestTrainerGoesOnFromACheckpoint(t *testing.T) {
	for _, c := range []struct{ before, after int }{{1, 1}, {3, 3}, {2, 3}, {3, 1}} {
		t.Run(fmt.Sprintf("%d workers, then %d", c.before, c.after), func(t *testing.T) {
			dir := t.TempDir()
			whole := runTraining(t, c.after, filepath.Join(dir, "undisturbed"), nil)
			folder := filepath.Join(dir, "checkpoints")
			runTraining(t, c.before, folder, map[string]string{stopVariable: "31"})
			again := runTraining(t, c.after, folder, nil)
			// a checkpoint that was late can be of step 31: it comes before who dies there
			if again.from < 5 || again.from > 31 || len(again.results) != c.after {
				t.Errorf("went on from step %d: %s", again.from, again.output)
			}
			if c.before == c.after && !slices.Equal(whole.results, again.results) {
				t.Errorf("ended with %v, undisturbed with %v", again.results, whole.results)
			}
			damage, _, err := checkpoint.Verify(t.Context(), filepath.Join(folder, "latest"), 2)
			if len(damage) > 0 || err != nil {
				t.Errorf("%v, %v", damage, err)
			}
		})
	}
}

// A job that is asked to stop writes a checkpoint of its last step.
func TestStoppedTrainingMakesNoStepAgain(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "checkpoints")
	r := runTraining(t, 3, folder, map[string]string{askVariable: "6"})
	last := regexp.MustCompile(`LAST (\d+)`).FindStringSubmatch(r.output)
	again := runTraining(t, 2, folder, nil)
	if last == nil || last[1] != strconv.Itoa(again.from) || len(again.results) != 2 {
		t.Errorf("stopped with %s\nand then %s", r.output, again.output)
	}
}

// Rank 0 looks for checkpoints; where it is killed before it has, the training does not begin anew.
func TestTheNextOneLooks(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "checkpoints")
	runTraining(t, 2, folder, map[string]string{stopVariable: "31"})
	r := runTraining(t, 3, folder, map[string]string{lookerVariable: "0"})
	if r.from < 5 || r.from > 31 || len(r.results) != 2 {
		t.Error(r.output)
	}
}

// A worker that is killed while its part is written does not keep the checkpoint from being sealed.
func TestPartOfAKilledWorkerIsWritten(t *testing.T) {
	r := runTraining(t, 3, filepath.Join(t.TempDir(), "checkpoints"),
		map[string]string{orphanVariable: "2", sizeVariable: "50000000"})
	if len(r.results) != 2 || strings.Contains(r.output, "abandoned") ||
		!strings.Contains(r.output, "by 3 workers") {
		t.Error(r.output)
	}
}

// Where the newest checkpoint is damaged, the training goes on from the one before.
func TestDamagedCheckpointIsPassedOver(t *testing.T) {
	folder := snapshot.Folder{Root: filepath.Join(t.TempDir(), "checkpoints")}
	runTraining(t, 2, folder.Root, nil)
	steps, err := folder.Sealed()
	if err != nil || len(steps) < 2 {
		t.Fatal(steps, err)
	}
	damage := func(step uint64) {
		shard := filepath.Join(folder.Path(step), "shard-00002-of-00002.safetensors")
		b, err := os.ReadFile(shard)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)-3] ^= 1
		if err := os.WriteFile(shard, b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	damage(steps[0].Step)
	r := runTraining(t, 3, folder.Root, nil)
	if r.from != int(steps[1].Step) || len(r.results) != 3 ||
		!strings.Contains(r.output, "not as it was sealed") {
		t.Errorf("went on from %d, not %d: %s", r.from, steps[1].Step, r.output)
	}
	if aside, err := filepath.Glob(filepath.Join(folder.Root, "damaged-*")); len(aside) != 1 ||
		err != nil {
		t.Error(aside, err)
	}
}

// Where all are damaged, the training ends with an error.
func TestWhenAllCheckpointsAreDamagedTheTrainingDoesNotBeginAnew(t *testing.T) {
	folder := snapshot.Folder{Root: filepath.Join(t.TempDir(), "checkpoints")}
	if err := os.MkdirAll(folder.Path(5), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder.Path(5), manifest.Name), []byte("{}"),
		0o666); err != nil {
		t.Fatal(err)
	}
	_, output, err := runWorkers(t, t.Context(), 2, "train", func(c *launcher.RunConfig) {
		c.Spec.Env[folderVariable] = folder.Root
	})
	if err == nil || !strings.Contains(output, "none of the 1 checkpoints") ||
		strings.Contains(output, "FROM") {
		t.Error(err, output)
	}
}

// Who reads the logs of a run sees what became of its checkpoints.
func TestTheLogHasWhatBecomesOfCheckpoints(t *testing.T) {
	var dir string
	_, output, err := runWorkers(t, t.Context(), 2, "train", func(c *launcher.RunConfig) {
		c.Spec.Env[folderVariable] = filepath.Join(t.TempDir(), "checkpoints")
		c.OnStart = func(_, path string) { dir = path }
	})
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	for rank := range 2 {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("rank-%d.log", rank)))
		if err != nil {
			t.Fatal(err)
		}
		logged.Write(text)
	}
	said := regexp.MustCompile(`shoal: checkpoint of step \d+ .*`).FindAllString(output, -1)
	for _, line := range said {
		if !strings.Contains(logged.String(), line+"\n") {
			t.Errorf("%q is in no log: %s", line, &logged)
		}
	}
	if len(said) == 0 {
		t.Error(output)
	}
}
