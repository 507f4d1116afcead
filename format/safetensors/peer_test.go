package safetensors_test

// This file compares with the reference implementation, where a Python has it.
import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/internal/framework"
	"github.com/shoal-ml/shoal/tensor"
)

// rewrite reads a file with the reference implementation and writes what it found.
const rewrite = `
import ctypes, sys, safetensors
names = dict(F64="float64", F32="float32", F16="float16", BF16="bfloat16", I64="int64", I32="int32", I16="int16", I8="int8",
             U64="uint64", U32="uint32", U16="uint16", U8="uint8", BOOL="bool", C64="complex64", F8_E4M3="float8_e4m3fn",
             F8_E5M2="float8_e5m2", F8_E8M0="float8_e8m0fnu", F8_E4M3FNUZ="float8_e4m3fnuz", F8_E5M2FNUZ="float8_e5m2fnuz")
specs, keep = {}, []
for name, t in safetensors.deserialize(open(sys.argv[1], "rb").read()):
    keep.append(ctypes.create_string_buffer(bytes(t["data"]), len(t["data"]) or 1))
    specs[name] = safetensors.TensorSpec(dtype=names[t["dtype"]], shape=t["shape"], data_ptr=ctypes.addressof(keep[-1]), data_len=len(t["data"]))
safetensors.serialize_file(specs, sys.argv[2], {"format": "pt"})
`

// referencePython returns a Python that has the package safetensors, 0.8 or newer; it skips the
// test if there is none.
func referencePython(t *testing.T) string {
	for _, python := range []string{framework.RepositoryPath(t, ".venv-torch2/bin/python"),
		"python3"} {
		if exec.Command(python, "-c", "from safetensors import TensorSpec").Run() == nil {
			return python
		}
	}
	t.Skip("no Python here has the package safetensors from 0.8 on; scripts/setup torch2 makes " +
		"one that does")
	return ""
}

// TestReference has the reference implementation read a file of every element type and write it
// again: both files are the same, bit by bit.
func TestReference(t *testing.T) {
	python := referencePython(t)
	var list []safetensors.Tensor
	for i, d := range tensor.StoredDTypes() {
		switch d {
		// what the reference cannot write from Python
		case tensor.C128, tensor.C32, tensor.F6E2M3, tensor.F6E3M2, tensor.F4:
			continue
		}
		for _, s := range []tensor.Shape{{}, {3}, {2, i}, {0, 7}} {
			list = append(list,
				safetensors.Tensor{Name: `layers."é` + "\t\u2028\x01.<" + d.String() + s.String(),
					DType: d, Shape: s})
		}
	}
	_, ours := writeFile(t, list, map[string]string{"format": "pt"})
	dir := t.TempDir()
	from, to := filepath.Join(dir, "ours"), filepath.Join(dir, "theirs")
	if err := os.WriteFile(from, ours, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(python, "-c", rewrite, from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	theirs, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(ours, theirs) {
		t.Fatalf("the reference writes\n%.2000q\nshoal\n%.2000q", theirs, ours)
	}
	if _, err := readHeader(theirs); err != nil {
		t.Error(err)
	}
}
