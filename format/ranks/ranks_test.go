package ranks_test

// This file tests shoal's own format.
import (
	"bytes"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/ranks"
	"github.com/shoal-ml/shoal/internal/envtest"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

const first, second = "rank-00000.safetensors", "rank-00001.safetensors"

// halvedTensor returns a tensor in two, and a folder with a file of zeros for each half. The folder
// is in memory. It stops the test if that cannot be laid out.
func halvedTensor(t *testing.T) (*layout.Spec, []format.Tensor, fstest.MapFS) {
	t.Helper()
	spec, err := layout.Parse(
		[]byte(`{shoal: layout/1, mesh: tp=2, rules: [{match: "**", place: "tp=shard(0)"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	tensors := []format.Tensor{{Name: "w", DType: tensor.F32, Shape: tensor.Shape{4}}}
	o, err := ranks.Layout(spec, tensors, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := fstest.MapFS{}
	for _, f := range o.Files {
		dir[f.Name] = &fstest.MapFile{Data: make([]byte, f.Size)}
	}
	for _, f := range o.Frames {
		copy(dir[f.File].Data[f.Offset:], f.Bytes)
	}
	return spec, tensors, dir
}

// TestDamage takes files away, cuts them off, and gives them each other's names. Each is noticed.
func TestDamage(t *testing.T) {
	_, _, dir := halvedTensor(t)
	if !formattest.IsSound(dir, ranks.Read) {
		t.Fatal("what is whole is not sound")
	}
	formattest.CheckDamage(t, envtest.Places(t), dir, ranks.Read, func(string) bool { return true })
	dir[first], dir[second] = dir[second], dir[first]
	_, err := ranks.Read(format.NewFiles(dir))
	if err == nil || !strings.Contains(err.Error(), "rank-00000.safetensors is the file of rank "+
		"1 of 2, by its metadata, and not of rank 0 of 2") ||
		!strings.Contains(err.Error(), "call it rank-00001.safetensors again") {
		t.Error(err)
	}
}

// TestShareOf compares what a rank of a running job writes with what is laid out for it.
func TestShareOf(t *testing.T) {
	spec, tensors, dir := halvedTensor(t)
	l, err := spec.Resolve(
		[]layout.Tensor{{Name: tensors[0].Name, DType: tensors[0].DType, Shape: tensors[0].Shape}})
	if err != nil {
		t.Fatal(err)
	}
	for rank, name := range []string{first, second} {
		share, err := ranks.ShareOf(l, rank)
		if err != nil || share.Name != name || !bytes.HasPrefix(dir[name].Data, share.Head) ||
			len(share.Head)+share.Bytes != len(dir[name].Data) {
			t.Errorf("rank %d: %v, %q", rank, err, share.Head)
		}
	}
}

// TestOtherTensors has a file with another tensor than the layout says: of another shape with as
// many bytes, of another type, and of another name. Each is refused.
func TestOtherTensors(t *testing.T) {
	for _, c := range [][3]string{
		{`"shape":[2]`, `"shape":[ 2,1]`, `tensor "w" is f32 [2], which is not in the file`},
		{`"F32"`, `"I32"`, `tensor "w" is f32 [2], which is not in the file`},
		{`"w":`, `"v":`, `tensor "w" is f32 [2], which is not in the file`},
	} {
		_, _, dir := halvedTensor(t)
		head, rest, _ := bytes.Cut(dir[second].Data, []byte(c[0]))
		room := len(c[1]) - len(c[0]) // of the spaces after the header
		data := bytes.Join([][]byte{head, []byte(c[1]), bytes.Replace(rest,
			bytes.Repeat([]byte(" "), room), nil, 1)}, nil)
		dir[second].Data = data
		if _, err := ranks.Read(format.NewFiles(dir)); err == nil ||
			!strings.Contains(err.Error(), c[2]) {
			t.Errorf("%s for %s: %v, want %q", c[1], c[0], err, c[2])
		}
	}
}

// TestShareOfNoType has a tensor of a type that safetensors lacks, which no file of a rank can
// hold.
func TestShareOfNoType(t *testing.T) {
	spec, _, _ := halvedTensor(t)
	l, err := spec.Resolve(
		[]layout.Tensor{{Name: "w", DType: tensor.C128, Shape: tensor.Shape{4}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ranks.ShareOf(l, 0); err == nil ||
		!strings.Contains(err.Error(), "the format has no element type c128") {
		t.Error(err)
	}
}

// TestOlderFiles reads what does not say of which rank it is. It is not refused.
func TestOlderFiles(t *testing.T) {
	_, _, dir := halvedTensor(t)
	for rank, name := range []string{first, second} {
		said := `"__metadata__":{"shoal":"{\"rank\":` + string(rune('0'+rank)) + `,\"ranks\":2}"},`
		head, rest, ok := bytes.Cut(dir[name].Data, []byte(said))
		if !ok {
			t.Fatalf("%s does not say %s", name, said)
		}
		end := bytes.LastIndexByte(rest, '}') + 1
		dir[name].Data = bytes.Join(
			[][]byte{head, rest[:end], bytes.Repeat([]byte(" "), len(said)), rest[end:]}, nil)
	}
	dir[first], dir[second] = dir[second], dir[first]
	if !formattest.IsSound(dir, ranks.Read) {
		t.Error("files without metadata are refused")
	}
}
