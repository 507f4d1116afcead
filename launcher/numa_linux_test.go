package launcher

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/internal/numa"
	"github.com/shoal-ml/shoal/job"
)

// Workers are spread over the memory nodes of a host, and share its cores.
func TestHomesOfWorkers(t *testing.T) {
	cpus := func(n int) []int { return make([]int, n) }
	two := []numa.Node{{ID: 0, CPUs: cpus(16)}, {ID: 1, CPUs: cpus(16)}}
	none := -1
	for what, c := range map[string]struct {
		homes   []numa.Node
		program string
		here    int // workers that begin here
		ended   int // of these, which has ended after the first start; 0 = none
		want    []int
		threads []int // of the environment of each
	}{
		"one node": {nil, "python3", 4, 0, []int{none, none, none, none},
			[]int{8, 8, 8, 8}},
		"fewer workers than":  {two, "python3", 1, 0, []int{none}, []int{32}},
		"a worker each":       {two, "python3", 2, 0, []int{0, 1}, []int{16, 16}},
		"neighbours together": {two, "python3", 4, 0, []int{0, 0, 1, 1}, []int{8, 8, 8, 8}},
		"one too many":        {two, "python3", 3, 0, []int{0, 0, 1}, []int{8, 8, 10}},
		"more than begin":     {two, "python3", 2, 0, []int{0, 1, 0, 1}, []int{16, 16, 16, 16}},
		"for one that has ended": {two, "python3", 4, 2, []int{0, 0, 1, 1, 1},
			[]int{8, 8, 8, 8, 8}},
		"three quarters and one": {[]numa.Node{{ID: 0, CPUs: cpus(8)}, {ID: 3, CPUs: cpus(24)}},
			"python3", 4, 0, []int{0, 3, 3, 3}, []int{8, 8, 8, 8}},
		"that bind by themselves": {two, "/usr/bin/numactl", 2, 0, []int{none, none},
			[]int{16, 16}},
	} {
		s := &supervisor{homes: c.homes, program: c.program, processes: map[int]*process{}}
		var got, threads []int
		for worker := range c.want {
			if c.ended > 0 && worker == c.here {
				s.processes[c.ended].ended = true
			}
			home, cores := s.chooseNode(environment{cores: 32, here: c.here})
			s.processes[worker] = &process{worker: worker, home: home}
			threads = append(threads, cores/c.here)
			if home == nil {
				got = append(got, none)
			} else {
				got = append(got, home.ID)
			}
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: nodes %s", what, d)
		}
		if d := cmp.Diff(c.threads, threads); d != "" {
			t.Errorf("%s: threads %s", what, d)
		}
	}
}

// A host whose nodes a test makes up: workers are kept on them, and memory lies there. The kernel
// refuses the second, which shows what was meant for it.
func TestRunOnSeveralNodes(t *testing.T) {
	var cpus []int // that this process may use
	for cpu := range 1024 {
		if _, may := numa.Home([]numa.Node{{CPUs: []int{cpu}}}, numa.Self); may {
			cpus = append(cpus, cpu)
		}
	}
	if len(cpus) < 2 {
		t.Skipf("this process may use processor %v alone", cpus)
	}
	nodes := []numa.Node{{ID: 0, CPUs: cpus[:1]}, {ID: 1000, CPUs: cpus[1:2]}}
	for _, c := range []struct {
		nodes []numa.Node
		n     int
		want  []string
	}{
		{nodes, 2, []string{
			fmt.Sprintf(
				"[0] on processor %d, OMP_NUM_THREADS=1, own memory preferred, 2 of 4 results\n",
				cpus[0]),
			fmt.Sprintf(
				"[1] on processor %d, OMP_NUM_THREADS=1, own memory as it comes, 2 of 4 results\n",
				cpus[1]),
			"shoal: worker 0 on memory node 0, worker 1 on memory node 1000\n"}},
		{nodes, 1, []string{
			fmt.Sprintf(
				"[0] on %d processors, OMP_NUM_THREADS=%d, own memory in turns, 2 of 4 results\n",
				len(cpus), runtime.GOMAXPROCS(0))}},
	} {
		out := runOnNodes(t, c.nodes, c.n)
		if strings.Contains(out, "no policies") {
			t.Skip(out)
		}
		for _, line := range c.want {
			if !strings.Contains(out, line) {
				t.Errorf("no %q in\n%s", line, out)
			}
		}
	}
}

// runOnNodes runs n workers that say where they are, on a host with these memory nodes, blocks
// until they have ended, and returns what all say. It sets variables of the environment until the
// test ends, so the test must not be parallel; a run that fails fails it.
func runOnNodes(t *testing.T, nodes []numa.Node, n int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "shoal") // a socket path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv("OMP_NUM_THREADS", "")
	os.Unsetenv("OMP_NUM_THREADS") // Setenv brings it back
	var mu sync.Mutex
	var out bytes.Buffer
	w := writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return out.Write(p)
	})
	spec := job.Spec{Name: "test", Workers: n, Command: []string{os.Args[0]},
		Env: map[string]string{"NODE_TEST_WORKER": "nodes"}}
	if _, err := Run(t.Context(),
		RunConfig{Spec: spec, Dir: t.TempDir(), Stdout: w, Stderr: w, nodes: nodes}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

// A writer is a function as an io.Writer.
type writer func(p []byte) (int, error)

// Write calls the function.
func (w writer) Write(p []byte) (int, error) { return w(p) }
