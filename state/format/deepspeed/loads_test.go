package deepspeed_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/state/format"
	"github.com/shoal-ml/shoal/state/format/deepspeed"
	"github.com/shoal-ml/shoal/state/format/formattest"
)

// reload is what DeepSpeed is to load, into which model over which ranks.
type reload struct {
	from string // the archive of the source
	kind string
	z    deepspeed.Zero
}

// TestDeepSpeedReloads has DeepSpeed load what is written for other ranks than have trained it, and save it: all state is as it was.
func TestDeepSpeedReloads(t *testing.T) {
	python := formattest.Python(t, "deepspeed")
	var args []string
	var wants []map[string]string
	reloads := []reload{
		{"moe2", "moe", deepspeed.Zero{Stage: 1, DP: 4, EP: 4}},
		{"moe1", "moe", deepspeed.Zero{Stage: 2, DP: 2}},
		{"moepipe", "moepipe", deepspeed.Zero{Stage: 1, DP: 1, PP: 2}},
		{"pipe", "pipe", deepspeed.Zero{Stage: 1, DP: 1, PP: 4, Starts: []int{2, 4, 5}}},
		{"pipe", "pipe", deepspeed.Zero{Stage: 1, DP: 2, PP: 1}},
		{"tensor", "tensor", deepspeed.Zero{Stage: 3, DP: 2, TP: 2}},
	}
	for _, x := range reloads {
		dir, _ := formattest.Load(t, "testdata/"+x.from+".zip")
		c, files := read(t, dir)
		folder := t.TempDir()
		if err := os.CopyFS(folder, spread(t, x.z, c, files)); err != nil {
			t.Fatal(err)
		}
		want := formattest.Contents(t, files, c)
		for name := range want {
			if x.z.Stage == 3 && strings.HasPrefix(name, "module.") {
				delete(want, name)
			}
		}
		wants = append(wants, want)
		tp, pp, ep := max(x.z.TP, 1), max(x.z.PP, 1), max(x.z.EP, 1)
		args = append(args, folder, filepath.Join(folder, "saved"), x.kind, fmt.Sprint(x.z.Stage), fmt.Sprint(x.z.DP*tp*pp), fmt.Sprint(max(ep, pp)))
	}
	compared := run(t, python, "load_parallel.py", args...)
	for i, x := range reloads {
		to := args[6*i+1]
		files := format.NewFiles(os.DirFS(to))
		c, err := deepspeed.Read(files)
		if err != nil {
			t.Fatal(err)
		}
		if diff := differing(wants[i], formattest.Contents(t, files, c)); diff != "" {
			t.Errorf("%s as %+v: %s", x.from, x.z, diff)
		}
		if n, _ := compared[to].(float64); (n == 0) != (x.z.Stage == 3) {
			t.Errorf("%s as %+v: %v parameters were compared", x.from, x.z, compared[to])
		}
	}
}
