package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/shoal-ml/shoal/state/format/formattest"
)

// TestState runs testdata/state/*.txtar, each with checkpoints that other libraries wrote in its folder.
func TestState(t *testing.T) {
	const formats = "../../state/format/"
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/state",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			for name, path := range map[string]string{
				"dcp": "dcp/testdata/dcp.zip", "unknown": "dcp/testdata/unknown.zip", "sharded": "hf/testdata/sharded.zip",
				"megatron": "megatron/testdata/tp2pp2.zip", "zero": "deepspeed/testdata/zero2.zip",
			} {
				dir, _ := formattest.Load(t, formats+path)
				if err := os.CopyFS(filepath.Join(env.WorkDir, name), dir); err != nil {
					return err
				}
			}
			return os.CopyFS(filepath.Join(env.WorkDir, "torch"), os.DirFS(formats+"torchzip/testdata/torch2.15"))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}
