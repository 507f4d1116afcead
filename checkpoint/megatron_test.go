package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// megatronSample unpacks a checkpoint of Megatron-LM, called name, into a folder of the test, and
// returns its path and the whole tensors of which its parts were cut. If it cannot the test fails.
func megatronSample(t *testing.T, name string) (string, formattest.What) {
	files, want := formattest.Load(t, "../format/megatron/testdata/"+name+".zip")
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, files); err != nil {
		t.Fatal(err)
	}
	return dir, want
}

// openCheckpoint opens a checkpoint until the test ends. If it cannot the test fails.
func openCheckpoint(t *testing.T, path string) *Checkpoint {
	t.Helper()
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// megatronLayout is how Megatron cuts and places the tensors that it names: over tensor parallel
// ranks, and stages of a pipeline.
const megatronLayout = `
shoal: layout/1
mesh: pp=4,tp=2
rules:
- {match: "optimizer.step.**"}
- {match: "**word_embeddings.weight", place: "pp=at(0,-1), tp=shard(0)"}
- {match: "**decoder.layers.#.**linear_qkv.weight", place: "pp=spread(1,4), tp=shard(0)"}
- {match: "**decoder.layers.#.**linear_proj.weight", place: "pp=spread(1,4), tp=shard(1)"}
- {match: "**decoder.layers.#.**linear_fc1.weight", place: "pp=spread(1,4), tp=shard(0,blocks=2)"}
- {match: "**decoder.layers.#.**linear_fc2.weight", place: "pp=spread(1,4), tp=shard(1)"}
- {match: "**decoder.layers.#.**", place: "pp=spread(1,4)"}
- {match: "**"}
`

// TestMegatronOptimizer writes Megatron's checkpoints with their optimizers anew, in every format
// and for other layouts, and compares with the whole tensors.
func TestMegatronOptimizer(t *testing.T) {
	stages, err := layout.Parse([]byte(megatronLayout))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mixed", "half", "fp32", "distributed"} {
		dir, want := megatronSample(t, name)
		for _, c := range []struct {
			name   string
			form   TargetFormat
			preset string
		}{
			{"hf", TargetFormat{Format: "hf"}, ""},
			{"pt", TargetFormat{Format: "pt", File: "pt"}, ""},
			{"dcp", TargetFormat{Format: "dcp"}, "fsdp2"},
			{"shards", TargetFormat{Format: "shards"}, "fsdp2"},
			{"zero1", TargetFormat{Format: "ranks"}, "zero1"},
			{"zero3", TargetFormat{Format: "ranks"}, "zero3"},
			{"stages", TargetFormat{Format: "ranks", Spec: stages}, ""},
			{"megatron", TargetFormat{Format: "megatron", Spec: stages}, ""},
			{"torch_dist", TargetFormat{Format: "torch_dist"}, ""},
		} {
			if name == "fp32" && c.form.Spec == stages {
				continue // its first matrices have no gate
			}
			t.Run(name+"/"+c.name, func(t *testing.T) {
				src := openCheckpoint(t, dir)
				if c.preset != "" {
					if c.form.Spec, err = layout.Preset(c.preset,
						layout.Mesh{{Name: "dp", Size: 3}}, Catalogue(src.Checkpoint),
						0); err != nil {
						t.Fatal(err)
					}
				}
				out, _, err := src.Output(c.form)
				if err != nil {
					t.Fatal(err)
				}
				dst := filepath.Join(t.TempDir(), c.name)
				if _, err := Move(t.Context(), src, out, dst,
					Options{Workers: 2, Seal: true}); err != nil {
					t.Fatal(err)
				}
				got := openCheckpoint(t, dst)
				formattest.Compare(t, got.Files, got.Checkpoint, want)
			})
		}
	}
}

// TestMegatronScale moves the scale of gradients of f16 from two optimizers, of which that of
// experts is another, to one, and from there to two.
func TestMegatronScale(t *testing.T) {
	dir, _ := megatronSample(t, "chained")
	src := openCheckpoint(t, dir)
	steps := slices.DeleteFunc(slices.Clone(src.Tensors), func(x format.Tensor) bool {
		return !strings.HasPrefix(x.Name, "optimizer.step.")
	})
	for i, name := range []string{"optimizer.0.grad_scaler.scale",
		"optimizer.1.grad_scaler.scale"} {
		scale := steps[i]
		scale.Name, scale.Proofs = name, nil
		src.Tensors = append(src.Tensors, scale)
	}
	if err := src.Finish(); err != nil {
		t.Fatal(err)
	}
	for _, mesh := range []string{"tp=2", "tp=2,ep=2"} {
		names := []string{"optimizer.grad_scaler.scale"}
		if mesh != "tp=2" {
			names = []string{"optimizer.0.grad_scaler.scale", "optimizer.1.grad_scaler.scale"}
		}
		m, err := layout.ParseMesh(mesh)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := layout.Preset("megatron-core", m, Catalogue(src.Checkpoint), 2)
		if err != nil {
			t.Fatal(err)
		}
		out, _, err := src.Output(TargetFormat{Format: "megatron", Spec: spec})
		if err != nil {
			t.Fatal(err)
		}
		dst := filepath.Join(t.TempDir(), "dst")
		if _, err := Move(t.Context(), src, out, dst, Options{Workers: 2, Seal: true}); err != nil {
			t.Fatal(err)
		}
		src = openCheckpoint(t, dst)
		if damage, _, err := Verify(t.Context(), dst, 2); err != nil || len(damage) > 0 {
			t.Errorf("%s: %v, %v", mesh, damage, err)
		}
		for _, name := range names {
			i := slices.IndexFunc(src.Tensors, func(x format.Tensor) bool { return x.Name == name })
			if i < 0 || !bytes.Equal(formattest.ReadTensor(t, src.Files, &src.Tensors[i]),
				[]byte{0, 0, 0x40, 0x41}) {
				t.Errorf("%s: no %s", mesh, name)
			}
		}
	}
}

// TestMegatronDistributed moves a sealed checkpoint into the distributed optimizer's files, where
// groups have the number of steps.
func TestMegatronDistributed(t *testing.T) {
	c := &format.Checkpoint{Format: "test"}
	var vectors, matrices []any
	for name, s := range map[string]tensor.Shape{
		"embedding.word_embeddings.weight":                   {8, 64},
		"decoder.layers.0.self_attention.linear_proj.weight": {64, 64},
		"decoder.layers.0.self_attention.linear_qkv.weight":  {192, 64},
		"decoder.layers.0.mlp.linear_fc1.weight":             {8, 64},
		"decoder.layers.0.mlp.linear_fc2.weight":             {64, 4},
		"decoder.final_layernorm.weight":                     {64},
	} {
		for kind, d := range map[string]tensor.DType{"model.": tensor.BF16,
			"optimizer.fp32.": tensor.F32, "optimizer.exp_avg.": tensor.F32,
			"optimizer.exp_avg_sq.": tensor.F32} {
			c.Tensors = append(c.Tensors,
				format.Tensor{Name: kind + name, DType: d, Shape: s,
					Pieces: []format.Piece{{Box: s.Box(), File: "zeros"}}})
		}
		c.Tensors = append(c.Tensors,
			format.Tensor{Name: "optimizer.step." + name, DType: tensor.F32,
				Pieces: []format.Piece{{File: "zeros"}}})
		if len(s) == 1 {
			vectors = append(vectors, name)
		}
	}
	for _, name := range []string{"embedding.word_embeddings",
		"decoder.layers.0.self_attention.linear_proj", "decoder.layers.0.self_attention.linear_qkv",
		"decoder.layers.0.mlp.linear_fc1", "decoder.layers.0.mlp.linear_fc2"} {
		matrices = append(matrices, name+".weight")
	}
	for i, names := range [][]any{matrices, vectors} {
		at := fmt.Sprintf("optimizer.optimizer.param_groups.%d.", i)
		c.Values = append(c.Values, format.Value{Path: at + "param_names", Data: names},
			format.Value{Path: at + "wd_mult", Data: 1 - float64(i)})
	}
	c.Values = append(c.Values,
		format.Value{Path: "args.accumulate_allreduce_grads_in_fp32", Data: true},
		format.Value{Path: "args.swiglu", Data: true},
		format.Value{Path: "args.num_attention_heads", Data: int64(4)})
	if err := c.Finish(); err != nil {
		t.Fatal(err)
	}
	out, err := torchzip.Layout("whole.pt", c.Tensors, c.Values)
	if err != nil {
		t.Fatal(err)
	}
	top := t.TempDir()
	if err := os.CopyFS(top,
		formattest.WriteOutput(t, out, c,
			format.NewFiles(fstest.MapFS{"zeros": {Data: make([]byte, 1<<16)}}))); err != nil {
		t.Fatal(err)
	}
	src := openCheckpoint(t, filepath.Join(top, "whole.pt"))
	spec, err := layout.Preset("megatron-core", layout.Mesh{{Name: "tp", Size: 2}},
		Catalogue(src.Checkpoint), 4)
	if err != nil {
		t.Fatal(err)
	}
	if out, _, err = src.Output(
		TargetFormat{Format: "megatron-distributed", Spec: spec}); err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(top, "dst")
	if _, err := Move(t.Context(), src, out, dst, Options{Workers: 2, Seal: true}); err != nil {
		t.Fatal(err)
	}
	if damage, _, err := Verify(t.Context(), dst, 2); err != nil || len(damage) > 0 {
		t.Errorf("%v, %v", damage, err)
	}
	got := openCheckpoint(t, dst)
	if n := len(c.Tensors) - len(matrices) - len(vectors); len(got.Tensors) != n {
		t.Errorf("%d tensors, want %d", len(got.Tensors), n)
	}
	for _, x := range got.Tensors {
		if x.Coords != nil {
			t.Errorf("%s is in parts: %s", x.Name, x.WhyPart)
		}
	}
	if step, _ := got.Value("optimizer.optimizer.param_groups.1.step"); step != int64(0) {
		t.Errorf("step is %v", step)
	}
}

// TestMegatronSameMesh writes a checkpoint for the mesh that it is of: what a rank has is what
// Megatron had written for it.
func TestMegatronSameMesh(t *testing.T) {
	for _, name := range []string{"mixed", "fp32"} {
		dir, _ := megatronSample(t, name)
		src := openCheckpoint(t, dir)
		spec, err := layout.Preset("megatron-core",
			layout.Mesh{{Name: "pp", Size: 2}, {Name: "tp", Size: 2}}, Catalogue(src.Checkpoint), 2)
		if err != nil {
			t.Fatal(err)
		}
		dst := filepath.Join(t.TempDir(), "dst")
		convert(t, dir, dst, TargetFormat{Format: "ranks", Spec: spec}, Options{Workers: 2})
		for rank := range 4 {
			theirs := openCheckpoint(t,
				filepath.Join(dir,
					fmt.Sprintf("iter_0000012/mp_rank_%02d_%03d/model_optim_rng.pt", rank%2,
						rank/2)))
			ours := openCheckpoint(t,
				filepath.Join(dst, fmt.Sprintf("rank-%05d.safetensors", rank)))
			n := 0
			for _, x := range ours.Tensors {
				local := x.Name
				for layer := range 2 {
					local = strings.Replace(local, fmt.Sprintf("layers.%d.", layer+rank/2*2),
						fmt.Sprintf("layers.%d.", layer), 1)
				}
				i := slices.IndexFunc(theirs.Tensors, func(y format.Tensor) bool {
					return y.Name == local
				})
				if i < 0 {
					continue // the optimizer's, which go by position there
				}
				a, b := make([]byte, x.Bytes()), make([]byte, theirs.Tensors[i].Bytes())
				if err := errors.Join(ours.Files.Read(&x, a),
					theirs.Files.Read(&theirs.Tensors[i], b)); err != nil {
					t.Fatal(err)
				}
				if !x.Shape.Equal(theirs.Tensors[i].Shape) || !bytes.Equal(a, b) {
					t.Errorf("%s, rank %d: %s is not Megatron's", name, rank, x.Name)
				}
				n++
			}
			if n < 8 {
				t.Errorf("%s, rank %d: only %d tensors are compared", name, rank, n)
			}
		}
	}
}

// TestMegatronWrongValue changes one element of a copy in f32, of which only one of four ranks has
// the part: nothing that reads the optimizer does anything but say where; the model is still good.
func TestMegatronWrongValue(t *testing.T) {
	dir, _ := megatronSample(t, "mixed")
	const name = "decoder.layers.2.mlp.linear_fc1.weight"
	src := openCheckpoint(t, dir)
	for _, x := range src.Tensors {
		if x.Name == "optimizer.fp32."+name {
			p := x.Pieces[len(x.Pieces)-1]
			at := p.Offset + 4*5
			changeFile(t, filepath.Join(dir, "iter_0000012", p.File), func(b []byte) []byte {
				b[at+3] ^= 0x40
				return b
			})
			rewriteChecksums(t, dir)
		}
	}
	src = openCheckpoint(t, dir)
	faults, err := src.Prove(t.Context(), 2)
	if err != nil || len(faults) != 1 || faults[0].Name != "optimizer.fp32."+name ||
		faults[0].Place != "tp=1/2" {
		t.Fatalf("%v, %v", faults, err)
	}
	said := faults[0].String()
	try := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v; want %s", what, err, said)
		}
	}
	_, err = Seal(t.Context(), src, 2)
	try("seal", err)
	_, _, err = Compare(t.Context(), src, openCheckpoint(t, dir), 2)
	try("diff", err)
	for only, wrong := range map[string]bool{"": true, "optimizer.exp_avg." + name: true,
		"optimizer.exp_avg.embedding.word_embeddings.weight": false, "model." + name: false} {
		some := openCheckpoint(t, dir)
		if only != "" {
			if err := some.Select(func(n string) bool { return n == only }); err != nil {
				t.Fatal(err)
			}
		}
		out, _, err := some.Output(TargetFormat{Format: "hf"})
		if err != nil {
			t.Fatal(err)
		}
		dst := filepath.Join(t.TempDir(), "dst")
		_, err = Move(t.Context(), some, out, dst, Options{Workers: 2})
		if !wrong && err != nil {
			t.Errorf("%s: %v", only, err)
		} else if wrong {
			try("a move of "+only, err)
			if _, err := os.Lstat(dst + PartialSuffix); err == nil {
				t.Errorf("a move of %s leaves something", only)
			}
		}
	}
}

// rewriteChecksums gives the one record that was changed, in the checkpoint of Megatron in dir, the
// checksum that it has now, as whoever writes something else would. If there is not one such record
// the test fails.
func rewriteChecksums(t *testing.T, dir string) {
	t.Helper()
	r, err := openCheckpoint(t, dir).Records(t.Context(), 2)
	if err != nil || len(r.Faults) != 1 {
		t.Fatalf("%v, %v", r.Faults, err)
	}
	f := r.Faults[0]
	var is, says uint32
	if _, err := fmt.Sscanf(f.What[strings.Index(f.What, "its checksum is "):],
		"its checksum is %x, and the file says %x", &is, &says); err != nil {
		t.Fatal(f, err)
	}
	changeFile(t, filepath.Join(dir, "iter_0000012", f.File), func(b []byte) []byte {
		return bytes.ReplaceAll(b, binary.LittleEndian.AppendUint32(nil, says),
			binary.LittleEndian.AppendUint32(nil, is))
	})
}

// TestProveInPieces proves a tensor of several blocks: a fault near the end is found, and only the
// first is told.
func TestProveInPieces(t *testing.T) {
	dir := t.TempDir()
	const n = 1<<20 + 3
	main, model := make([]byte, 4*n), make([]byte, 2*n)
	for i := range n {
		main[4*i+2], main[4*i+3], model[2*i], model[2*i+1] = 0x80, byte(0x3f+i%2), 0x80,
			byte(0x3f+i%2)
	}
	model[2*(n-7)]++
	model[2*(n-3)]++
	write := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("main", main)
	write("model", model)
	tensorOf := func(name string, d tensor.DType) format.Tensor {
		s := tensor.Shape{n}
		return format.Tensor{Name: name, DType: d, Shape: s,
			Pieces: []format.Piece{{Box: s.Box(), File: name}}}
	}
	p := &format.Proof{Main: tensorOf("main", tensor.F32), Model: tensorOf("model", tensor.BF16)}
	x := tensorOf("main", tensor.F32)
	x.Proofs = []*format.Proof{p}
	c := &Checkpoint{Checkpoint: &format.Checkpoint{Tensors: []format.Tensor{x}},
		Files: format.NewFiles(os.DirFS(dir))}
	faults, err := c.Prove(t.Context(), 3)
	if err != nil || len(faults) != 1 || faults[0].File != "main" || faults[0].Offset != 4*(n-7) ||
		!strings.Contains(faults[0].What, "(model, byte 2097144)") {
		t.Errorf("%v, %v", faults, err)
	}
}

// TestMegatronUnchained writes a model whose experts have an optimizer of their own as ZeRO: the
// flat buffers are those that come by way of Megatron's folder for one expert parallel rank, which
// has one optimizer.
func TestMegatronUnchained(t *testing.T) {
	dir, _ := megatronSample(t, "chained")
	at := func(name string) string { return filepath.Join(t.TempDir(), name) }
	for _, stage := range []string{"zero1", "zero3"} {
		one, direct, by := at("one"), at("direct"), at("by")
		convertWithGroups(t, dir, one, "megatron", 0, nil)
		convertWithGroups(t, one, by, stage, 3, nil)
		convertWithGroups(t, dir, direct, stage, 3, nil)
		files, err := filepath.Glob(filepath.Join(direct, "*", "*_optim_states.pt"))
		if err != nil || len(files) != 3 {
			t.Fatal(files, err)
		}
		for _, file := range files {
			name, _ := filepath.Rel(direct, file)
			got, err := os.ReadFile(file)
			want, missing := os.ReadFile(filepath.Join(by, name))
			if err := errors.Join(err, missing); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %s is another: %v", stage, name, err)
			}
		}
	}
}

// TestDamageInAnIteration damages a file in the folder of an iteration of Megatron, where the one
// above is sealed: what is said has the tensor, and the file as it stands in the one above.
func TestDamageInAnIteration(t *testing.T) {
	dir, _ := megatronSample(t, "mixed")
	c := openCheckpoint(t, dir)
	if _, err := Seal(t.Context(), c, 2); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(c.Tensors, func(x format.Tensor) bool {
		return x.Bytes() > 0 && len(x.Replicas) == 0
	})
	if c.Files.Dir == "" || i < 0 {
		t.Fatalf("%q: no tensor stands once only", c.Files.Dir)
	}
	name := c.Files.Dir + "/" + c.Tensors[i].Pieces[0].File
	changeFile(t, filepath.Join(dir, name), func(b []byte) []byte {
		b[c.Tensors[i].Pieces[0].Offset] ^= 1
		return b
	})
	damage, _, err := Verify(t.Context(), dir, 2)
	if err != nil || len(damage) < 2 {
		t.Fatal(damage, err)
	}
	for _, d := range damage {
		if d.File != name || !slices.Contains(d.Tensors, c.Tensors[i].Name) {
			t.Errorf("%v; want %s of tensor %s", d, name, c.Tensors[i].Name)
		}
	}
}
