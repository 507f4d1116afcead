package run

import (
	"os"
	"path/filepath"
	"testing"
)

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
