package checkpoint

import (
	"bytes"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/ranks"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// FuzzRanks reads shoal's own format, of which the layout or the file of a rank lies. What Check
// finds sound can be read.
func FuzzRanks(f *testing.F) {
	const first, second = "rank-00000.safetensors", "rank-00001.safetensors"
	tensors := []format.Tensor{{Name: "layers.0.w", DType: tensor.F32, Shape: tensor.Shape{4, 3}},
		{Name: "step", DType: tensor.I64, Shape: tensor.Shape{}}}
	for _, rules := range []string{`[{match: "**w", place: "tp=shard(0)"}, {match: "**"}]`,
		`[{match: "**w", place: "tp=flat(all)"}, {match: "**"}]`} {
		spec, err := layout.Parse([]byte("shoal: layout/1\nmesh: tp=2\nrules: " + rules))
		if err != nil {
			f.Fatal(err)
		}
		o, err := ranks.Layout(spec, tensors, nil)
		if err != nil {
			f.Fatal(err)
		}
		files := map[string][]byte{}
		for _, x := range o.Files {
			files[x.Name] = make([]byte, x.Size)
		}
		for _, x := range o.Frames {
			copy(files[x.File][x.Offset:], x.Bytes)
		}
		dir := fstest.MapFS{}
		for name, data := range files {
			dir[name] = &fstest.MapFile{Data: data}
		}
		if !formattest.IsSound(dir, ranks.Read) {
			f.Fatal("the seed is not sound")
		}
		f.Add(files[ranks.LayoutName], files[first], files[second])
	}
	f.Fuzz(func(t *testing.T, text, one, two []byte) {
		formattest.IsSound(fstest.MapFS{ranks.LayoutName: {Data: text},
			first: {Data: bytes.Clone(one)}, second: {Data: two}}, ranks.Read)
	})
}
