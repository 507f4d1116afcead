package run

import (
	"os"
	"path/filepath"
	"testing"
)

// A host has a slot for each GPU that CUDA would find, in a container for each that this has.
func TestVisibleGPUs(t *testing.T) {
	two, files := []string{"0000:00:04.0", "0000:00:05.0"}, []string{"nvidia0", "nvidia1"}
	for _, c := range []struct {
		folders, files []string
		seen           string
		set            bool
		want           int
	}{
		{two, files, "", false, 2},
		{two, files, "1", true, 1},
		{two, files, "0,-1,1", true, 1},
		{two, files, "", true, 0},
		{two, files, "NoDevFiles", true, 0}, // as Slurm says that a job has none
		{two, files, "1,none,0", true, 1},
		{two, files, "1,2,0", true, 1},
		{two, files[1:], "", false, 1},
		{two, files[1:], "0,1", true, 1},
		{two, files[1:], "GPU-5ca1ab1e", true, 1},
		{two, nil, "", false, 0},
		{two, nil, "0,1", true, 2},
		{two[:1], files[:1], "MIG-a,MIG-b", true, 2},
		{nil, files, "0,1", true, 0},
		{nil, nil, "", false, 0},
	} {
		if got := visibleGPUs(c.folders, c.files, c.seen, c.set); got != c.want {
			t.Errorf("%q of %v and %v: %d GPUs, want %d", c.seen, c.folders, c.files, got, c.want)
		}
	}
}

// TestKindOfHost: a host is of the kind that somebody says, else of that of its GPU, else cpu; a
// text that cannot be a kind is refused.
func TestKindOfHost(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"0000:00:04.0": "Model: \t\t NVIDIA A100-SXM4 40GB\nIRQ:   \t\t 17\n",
		"0000:00:05.0": "Model: \t\t Tesla V100\n",
	} {
		gpu := filepath.Join(dir, name)
		if err := os.Mkdir(gpu, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(gpu, "information"), []byte(text),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	both := []string{filepath.Join(dir, "0000:00:04.0"), filepath.Join(dir, "0000:00:05.0")}
	for want, gpus := range map[string][]string{
		"NVIDIA-A100-SXM4-40GB": both,
		"Tesla-V100":            both[1:],
		"cpu":                   nil,
	} {
		if got := defaultKind(gpus); got != want {
			t.Errorf("with the GPUs %s this host is of kind %q, want %q", gpus, got, want)
		}
	}
	if kind, err := hostKind("a100"); kind != "a100" || err != nil {
		t.Errorf("--kind a100 gives %q, %v", kind, err)
	}
	if kind, err := hostKind("a100/v100"); err == nil {
		t.Errorf("--kind a100/v100 gives %q", kind)
	}
}
