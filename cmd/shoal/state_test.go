package main

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/shoal-ml/shoal/checkpoint/s3/s3test"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/internal/cli/clitest"
)

// TestState runs testdata/state/*.txtar, each with checkpoints that other libraries wrote in its
// folder. Beside what TestScripts has there are a bucket in memory, s3://models, and "flip FILE
// [BYTE]", which changes the last bit of a byte, or of the last, "truncate FILE BYTES", and
// "replace FILE OLD NEW TO".
func TestState(t *testing.T) {
	const formats = "../../format/"
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/state",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			server := httptest.NewServer(s3test.New("models"))
			env.Defer(server.Close)
			for _, v := range [][2]string{{"AWS_ENDPOINT_URL_S3", server.URL},
				{"AWS_ACCESS_KEY_ID", "someone"}, {"AWS_SECRET_ACCESS_KEY", "secret"}} {
				env.Setenv(v[0], v[1])
			}
			for name, path := range map[string]string{
				"fsdp": "dcp/testdata/flat.zip", "listed": "dcp/testdata/listed.zip",
				"dcp": "dcp/testdata/dcp.zip", "unknown": "dcp/testdata/unknown.zip",
				"sharded":  "hf/testdata/sharded.zip",
				"megatron": "megatron/testdata/tp2pp2.zip", "zero": "deepspeed/testdata/zero2.zip",
				"mixed":       "megatron/testdata/mixed.zip",
				"distributed": "megatron/testdata/distributed.zip",
				"alike":       "megatron/testdata/alike.zip",
				"scaled":      "megatron/testdata/scaled.zip",
				"chained":     "megatron/testdata/chained.zip",
				"pipe":        "deepspeed/testdata/pipe.zip",
				"moe":         "deepspeed/testdata/moe2.zip",
				"moepipe":     "deepspeed/testdata/moepipe.zip",
				"tensor":      "deepspeed/testdata/tensor.zip",
			} {
				dir, _ := formattest.Load(t, formats+path)
				if err := os.CopyFS(filepath.Join(env.WorkDir, name), dir); err != nil {
					return err
				}
			}
			if err := writeObjects(t, env.WorkDir); err != nil {
				return err
			}
			if err := os.CopyFS(filepath.Join(env.WorkDir, "before"),
				os.DirFS("../../checkpoint/testdata/before")); err != nil {
				return err
			}
			return os.CopyFS(filepath.Join(env.WorkDir, "torch"),
				os.DirFS(formats+"torchzip/testdata/torch2.15"))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": clitest.Commands()["exits"],
			"flip": func(ts *testscript.TestScript, _ bool, args []string) {
				b := []byte(ts.ReadFile(args[0]))
				at := len(b) - 1
				if len(args) > 1 {
					var err error
					at, err = strconv.Atoi(args[1])
					ts.Check(err)
				}
				b[at] ^= 1
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o666))
			},
			"replace": func(ts *testscript.TestScript, _ bool, args []string) {
				text := strings.ReplaceAll(ts.ReadFile(args[0]), args[1], args[2])
				ts.Check(os.WriteFile(ts.MkAbs(args[3]), []byte(text), 0o666))
			},
			"truncate": func(ts *testscript.TestScript, _ bool, args []string) {
				n, err := strconv.ParseInt(args[1], 10, 64)
				ts.Check(err)
				ts.Check(os.Truncate(ts.MkAbs(args[0]), n))
			},
		},
	})
}
