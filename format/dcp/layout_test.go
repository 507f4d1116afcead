package dcp_test

// This file tests what is laid out: shoal and torch read it.
import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/internal/framework"
	"github.com/shoal-ml/shoal/tensor"
)

// load has torch load a folder into tensors of zeros, shape by shape, and print what they hold
// then.
const load = `
import json, sys, torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
items = FileSystemReader(sys.argv[1]).read_metadata().state_dict_metadata
state = {k: torch.zeros(m.size, dtype=m.properties.dtype) if hasattr(m, "size") else None for k, m in items.items()}
dcp.load(state, checkpoint_id=sys.argv[1], no_dist=True)
show = lambda t: [str(t.dtype), list(t.shape), bytes(t.reshape(-1).view(torch.uint8).tolist()).hex()]
print(json.dumps({k: show(v) if isinstance(v, torch.Tensor) else v for k, v in state.items()}))
`

// TestLayout writes a checkpoint anew for other ranks than those that wrote it; shoal and torch
// find what was there.
func TestLayout(t *testing.T) {
	source, want := formattest.Load(t, "testdata/dcp.zip")
	files := format.NewFiles(source)
	from, err := dcp.Read(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	ranks := make([][]format.Shard, 3)
	for i, s := range from.Tensors {
		shard := format.Shard{Name: s.Name, DType: s.DType, Shape: s.Shape, Box: s.Shape.Box()}
		if len(s.Shape) < 2 {
			ranks[i%3] = append(ranks[i%3], shard)
			continue
		}
		for r := range ranks { // columns, uneven
			n := s.Shape[1]
			shard.Box = s.Shape.Box()
			shard.Box[1] = tensor.Span{From: r * n / 3, To: (r + 1) * n / 3}
			if !shard.Box.Empty() {
				ranks[r] = append(ranks[r], shard)
			}
		}
	}
	o, err := dcp.Layout(ranks, from.Values)
	if err != nil {
		t.Fatal(err)
	}
	dir := formattest.WriteOutput(t, o, from, files)
	written := format.NewFiles(dir)
	got, err := dcp.Read(written, nil)
	if err != nil {
		t.Fatal(err)
	}
	formattest.Compare(t, written, got, want)
	if diff := cmp.Diff(from.Values, got.Values); diff != "" {
		t.Errorf("values -written +read:\n%s", diff)
	}

	to := filepath.Join(t.TempDir(), "checkpoint")
	if err := os.CopyFS(to, dir); err != nil {
		t.Fatal(err)
	}
	out := framework.Ask(t, "torch", []string{"-c", load, to}, to)
	var theirs map[string]any
	if err := json.Unmarshal(out, &theirs); err != nil {
		t.Fatal(err)
	}
	all := map[string]any{"step": 12.0, "lr": []any{0.1, 0.2}, "nested.name": "x"}
	for name, what := range want {
		all[name] = what[:]
	}
	if diff := cmp.Diff(all, theirs); diff != "" {
		t.Errorf("-written +torch:\n%s", diff)
	}
}

// TestLayoutRefuses says which shards cannot be laid out.
func TestLayoutRefuses(t *testing.T) {
	of := func(name string, from, to int) format.Shard {
		return format.Shard{Name: name, DType: tensor.F32, Shape: tensor.Shape{4},
			Box: tensor.Box{{From: from, To: to}}}
	}
	other := of("w", 2, 4)
	other.DType = tensor.F16
	for _, c := range []struct {
		ranks  [][]format.Shard
		values []format.Value
		err    string
	}{
		{[][]format.Shard{{of("w", 0, 5)}}, nil, `tensor "w": box [0:5] lies outside`},
		{[][]format.Shard{{of("w", 0, 2)}, {of("w", 0, 2)}}, nil,
			`two shards start at the same place`},
		{[][]format.Shard{{of("w", 0, 2)}, {other}}, nil, `a shard of f16`},
		{[][]format.Shard{{of("w", 0, 4)}}, []format.Value{{Path: "w", Data: true}},
			`value "w": a tensor has this name`},
		{[][]format.Shard{{of("w", 0, 4)}}, []format.Value{{Path: "x", Data: struct{}{}}},
			`value "x"`},
	} {
		if _, err := dcp.Layout(c.ranks, c.values); err == nil ||
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%v; want %q", err, c.err)
		}
	}
}
