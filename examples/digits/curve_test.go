package digits_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/examples/digits"
)

const curveSteps = 200 // two epochs, of which the first ends with a batch of 14

// TestMain lets this program be the worker of the jobs that it tests.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "curve" {
		if err := writeCurve(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// writeCurve trains as one worker, in its process, and writes the loss of each global batch to
// dir/RANK. dtype is f32 or f64.
func writeCurve(dtype, dir string) error {
	job, err := client.Join(context.Background())
	if err != nil {
		return err
	}
	train := digits.Train[float32]
	if dtype == "f64" {
		train = digits.Train[float64]
	}
	config := digits.Default()
	config.Steps = curveSteps
	losses, err := train(context.Background(), job, config, func(digits.Progress) error {
		return nil
	})
	if err != nil {
		return err
	}
	text, err := json.Marshal(losses)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(job.Rank())), text, 0o600); err != nil {
		return err
	}
	return job.Close()
}

// TestCurveDoesNotDependOnTheWorkers trains with one, three and four processes; three share each
// batch unevenly.
func TestCurveDoesNotDependOnTheWorkers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("jobs run on Linux")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shoal := filepath.Join(t.TempDir(), "shoal")
	if out, err := exec.Command("go", "build", "-o", shoal,
		"../../cmd/shoal").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for dtype, tolerance := range map[string]float64{"f32": 1e-4, "f64": 1e-9} {
		alone := curve(t, 1, self, "curve", dtype)
		for _, n := range []int{3, 4} {
			together := curve(t, n, shoal, "run", "-n", fmt.Sprint(n), "--", self, "curve", dtype)
			worst := 0.0
			for step, loss := range alone {
				worst = max(worst, math.Abs(together[step]-loss)/loss)
			}
			t.Logf("%s, %d workers: largest relative difference of the loss %.2g", dtype, n, worst)
			if !(worst <= tolerance) {
				t.Errorf("%s: the loss of %d workers differs from that of one by up to %g, "+
					"allowed is %g", dtype, n, worst, tolerance)
			}
		}
	}
}

// curve runs a command, to which it adds a directory, waits for it, and returns the losses that n
// ranks write there: the same ones. It ends the test when the command fails or the ranks differ.
func curve(t *testing.T, n int, command ...string) (losses []float64) {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command(command[0],
		append(command[1:], dir)...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", command, err, out)
	}
	for rank := range n {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(rank)))
		if err != nil {
			t.Fatal(err)
		}
		var own []float64
		if err := json.Unmarshal(text, &own); err != nil {
			t.Fatal(err)
		}
		if rank == 0 {
			losses = own
		}
		if len(own) != curveSteps || !slices.Equal(own, losses) {
			t.Fatalf("rank %d of %d has other losses than rank 0, or not %d of them", rank, n,
				curveSteps)
		}
	}
	return losses
}
