package launcher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/internal/gpu"
)

// Workers of jobs of one user take different GPUs as long as there are some, and find them at
// cuda:LOCAL_RANK: that of one that comes later is 0.
func TestWorkersTakeGPUs(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	env := []string{gpu.Variable + "=4,GPU-a/b, 6,-1,7"}
	jobs := map[string]*gpus{}
	for _, job := range []string{"A", "B"} {
		found := findGPUs(env, nil, nil)
		jobs[job] = &found
	}
	var out strings.Builder
	want := `
A w0 begins
B w0 begins: GPU-a/b, worker 0 has GPU GPU-a/b
B w1 begins: GPU-a/b,6, worker 1 has GPU 6
A w1 begins: GPU-a/b,4, worker 1 shares GPU 4: no other is free
A w2 begins: GPU-a/b,6,4, worker 2 shares GPU 4: no other is free
A w3 begins: , worker 3 shares GPU 4: no other is free
B w2 comes: GPU-a/b, worker 2 shares GPU GPU-a/b: no other is free
B w0 goes
A w4 comes: 4, worker 4 shares GPU 4: no other is free
B w2 goes
A w5 comes: GPU-a/b, worker 5 has GPU GPU-a/b
A w5 goes
A w5 goes
B w3 comes: GPU-a/b, worker 3 has GPU GPU-a/b
B w1 goes
B w3 goes
A w6 comes: GPU-a/b, worker 6 has GPU GPU-a/b
A w7 comes: 6, worker 7 has GPU 6
B w4 comes: , worker 4: other jobs have all GPUs
`
	for line := range strings.Lines(strings.TrimPrefix(want, "\n")) {
		var job, does string
		var worker int
		if _, err := fmt.Sscanf(line, "%s w%d %s", &job, &worker, &does); err != nil {
			t.Fatal(err)
		}
		g, entry, text := jobs[job], "", ""
		switch does = strings.TrimSuffix(does, ":"); does {
		case "begins":
			entry, text = g.takeFirst(worker)
		case "comes":
			entry, text = g.takeLate(worker)
		case "goes":
			g.release(worker)
		}
		fmt.Fprintf(&out, "%s w%d %s", job, worker, does)
		if text != "" {
			fmt.Fprintf(&out, ": %s, %s", strings.TrimPrefix(entry, gpu.Variable+"="), text)
		}
		fmt.Fprintln(&out)
	}
	if d := cmp.Diff(want, "\n"+out.String()); d != "" {
		t.Error(d)
	}
	two, one := []string{"a", "b"}, []string{"a"}
	for _, hidden := range []string{"", "-1", " ", "NoDevFiles"} {
		if g := findGPUs([]string{gpu.Variable + "=" + hidden}, two, two); len(g.list) > 0 {
			t.Errorf("with %q: %+v", hidden, g)
		}
	}
	if all, some := findGPUs(nil, two, two), findGPUs(nil, two, one); len(all.list) != 2 ||
		len(some.list) != 0 {
		t.Errorf("all of a machine: %+v; some of it, in a container: %+v", all, some)
	}
}
