package snapshot_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/checkpoint/snapshot/snapshottest"
	"github.com/shoal-ml/shoal/format/ranks"
	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/layout/layouttest"
	"github.com/shoal-ml/shoal/tensor"
)

// expectedMemory returns the bytes of each tensor of each rank, by rank and name, by an oracle.
func expectedMemory(spec *layout.Spec, tensors []layout.Tensor,
	l *layout.Layout) (list []map[string][]byte) {
	for rank, arrays := range layouttest.ExpectedArrays(spec, tensors) {
		list = append(list, map[string][]byte{})
		for _, x := range l.RankLocals(rank) {
			b := []byte{}
			for _, e := range arrays[x.Name].Data {
				b = append(b, e.Bytes(x.DType.Size())...)
			}
			list[rank][x.Name] = b
		}
	}
	return list
}

// writeMeshed has all ranks of a layout write a checkpoint of step 7 into root, from the memory of
// each, and returns its path. It fails the test where the checkpoint is not sealed, and skips what
// rapid has drawn where no file can hold a tensor.
func writeMeshed(t *rapid.T, root string, spec *layout.Spec, l *layout.Layout,
	memory []map[string][]byte) string {
	said := &snapshottest.Lines{}
	folder := snapshot.Folder{Root: root, Keep: 1, Log: said.Say}
	for _, x := range l.Tensors {
		if _, err := safetensors.Layout(
			[]safetensors.Tensor{{Name: x.Name, DType: x.DType, Shape: x.Shape}}, nil); err != nil {
			t.Skip(err) // rapid draws another model
		}
	}
	state := &snapshot.State{Step: 7, Cursor: []byte{1}, Workers: l.Ranks,
		Notes: json.RawMessage(`{}`), Mesh: &spec.Mesh, Items: [][]byte{{1, 2}}}
	text, err := state.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	description, err := ranks.DescribeSpread(spec, l)
	if err != nil {
		t.Fatal(err)
	}
	for rank := range l.Ranks {
		share, err := ranks.ShareOf(l, rank)
		if err != nil {
			t.Fatal(err)
		}
		p := &snapshot.Part{Folder: folder, Seed: 99, Rank: rank, State: text,
			Own: json.RawMessage(`{}`)}
		p.Mesh = func(mesh string) (*snapshot.MeshState, error) {
			return &snapshot.MeshState{Layout: l, Text: description}, nil
		}
		for _, x := range share.Tensors {
			p.Body = append(p.Body, memory[rank][x.Name]...)
		}
		if err := p.Check(); err != nil {
			t.Fatal(err)
		}
		p.Write()
	}
	if !strings.Contains(said.String(), "is sealed") {
		t.Fatalf("the checkpoint is not sealed: %s", said)
	}
	return folder.Path(7)
}

// TestMeshed writes the state of random layouts and reads it on others, and compares with an
// oracle. The seal holds for what shoal state reads. Then it damages a byte of some file: whoever
// needs that byte is told.
func TestMeshed(t *testing.T) {
	root := t.TempDir()
	if flag.Lookup("rapid.checks").Value.String() == flag.Lookup("rapid.checks").DefValue {
		must(t, flag.Set("rapid.checks", "20")) // each writes dozens of files for good
	}
	rapid.Check(t, func(t *rapid.T) {
		model := layouttest.DrawModel(t)
		from, to := layouttest.DrawSpec(t, model), layouttest.DrawSpec(t, model)
		old, err := from.Resolve(model.Tensors)
		if err != nil {
			t.Fatal(err)
		}
		new, err := to.Resolve(model.Tensors)
		if err != nil {
			t.Fatal(err)
		}
		dir, err := os.MkdirTemp(root, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		path := writeMeshed(t, dir, from, old, expectedMemory(from, model.Tensors, old))
		if damage, _, err := checkpoint.Verify(context.Background(), path, 1); err != nil ||
			len(damage) > 0 {
			t.Fatalf("the seal does not hold: %v, %v", damage, err)
		}
		want := expectedMemory(to, model.Tensors, new)
		read := func(rank int) (map[string][]byte, error) {
			sealed, err := snapshot.Folder{Root: dir}.Open(7)
			if err != nil {
				return nil, err
			}
			got := map[string][]byte{}
			for name, b := range want[rank] {
				got[name] = make([]byte, len(b))
			}
			return got, sealed.ReadMeshed(context.Background(), new, rank,
				func(name string) []byte {
					return got[name]
				})
		}
		for rank := range want {
			got, err := read(rank)
			if err != nil {
				t.Fatal(err)
			}
			checkSame(t, rank, got, want[rank])
		}
		damageFile(t, path)
		for rank := range want {
			got, err := read(rank)
			switch {
			case err == nil:
				checkSame(t, rank, got, want[rank])
			case !errors.Is(err, snapshot.ErrDamaged):
				t.Fatalf("rank %d is not told of damage: %v", rank, err)
			}
		}
	})
}

// must fails the test if err is not nil.
func must(t *testing.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// checkSame fails the test unless a rank has got these bytes, by name of the tensor.
func checkSame(t *rapid.T, rank int, got, want map[string][]byte) {
	for name, b := range want {
		if !bytes.Equal(got[name], b) {
			t.Fatalf("rank %d has of %s\n%x, want\n%x", rank, name, got[name], b)
		}
	}
}

// damageFile changes a bit of a file of tensors in the folder path, if there is one.
func damageFile(t *rapid.T, path string) {
	files, err := filepath.Glob(filepath.Join(path, "*.safetensors"))
	if err != nil || len(files) == 0 {
		return
	}
	file := rapid.SampledFrom(files).Draw(t, "file")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text[rapid.IntRange(0, len(text)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
	if err := os.WriteFile(file, text, 0o666); err != nil {
		t.Fatal(err)
	}
}

// TestReplicasShareOut: what several ranks have each of them writes an equal part of, and what one
// alone has it writes itself.
func TestReplicasShareOut(t *testing.T) {
	spec := &layout.Spec{Shoal: layout.Version, Mesh: "dp=3,tp=2",
		Rules: []layout.Rule{{Match: "w.#", Place: "tp=shard(0)"},
			{Match: "flat", Place: "dp=flat"}, {Match: "**"}}}
	tensors := []layout.Tensor{{Name: "flat", DType: tensor.F32, Shape: tensor.Shape{6}}}
	for i := range 6 {
		tensors = append(tensors,
			layout.Tensor{Name: fmt.Sprintf("w.%d", i), DType: tensor.F32,
				Shape: tensor.Shape{4, 5}})
	}
	l, err := spec.Resolve(tensors)
	must(t, err)
	for rank := range l.Ranks {
		share, err := ranks.ShareOf(l, rank)
		must(t, err)
		if want := 2*40 + 8*((rank+1)%2); share.Bytes != want {
			t.Errorf("rank %d writes %d bytes, want %d: %v", rank, share.Bytes, want, share.Tensors)
		}
		marks := ranks.ShareMarks(l, rank)
		if set := bits.OnesCount8(marks[0]); len(marks) != 1 || set != len(share.Tensors) {
			t.Errorf("rank %d has the marks %08b for %d tensors", rank, marks, len(share.Tensors))
		}
	}
}
