package torchzip_test

// This file tests the form before torch 1.6, byte by byte.
import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/torchzip"
)

const (
	legacyStart = "\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + "\x80\x02M\xe9\x03."
	legacyHost  = "\x80\x02}X\x0d\x00\x00\x00little_endian\x88s."
)

// legacyFile is a file of one tensor of two floats, a view of the storage "s" of six. part is the
// pickled last item of its reference; keys are of the storages that follow.
func legacyFile(part, keys string, storages ...[]byte) []byte {
	root := "\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((U\x07storage" +
		"ctorch\nFloatStorage\nU\x01sU\x03cpuK\x06" + part + "tQK\x01K\x02\x85K\x01\x85\x89NtRs."
	b := []byte(legacyStart + legacyHost + root + "\x80\x02](" + keys + "e.")
	return append(b, bytes.Join(storages, nil)...)
}

// legacyStorage is a storage of n floats that count up, after their number.
func legacyStorage(n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(n))
	for i := range n {
		b = append(b, byte(i), 0, 0, 0)
	}
	return b
}

// TestLegacyParts reads tensors of whole storages, and of parts of storages as the first versions
// of torch wrote them.
func TestLegacyParts(t *testing.T) {
	for part, want := range map[string]string{"N": "[1 0 0 0 2 0 0 0]",
		"(U\x01vK\x02K\x03t": "[3 0 0 0 4 0 0 0]"} {
		c, files, err := openBytes(legacyFile(part, "U\x01s", legacyStorage(6)))
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, c.Tensors[0].Bytes())
		if err := files.Read(&c.Tensors[0], b); err != nil || fmt.Sprint(b) != want {
			t.Errorf("part %q: %v, %v; want %v", part, b, err, want)
		}
		if faults := c.Check(files); len(faults) > 0 || len(files.Archives()) > 0 {
			t.Errorf("part %q: %v", part, faults)
		}
	}
}

// TestLegacyRefuses has files of the form before torch 1.6 with what shoal does not read, or with
// damage.
func TestLegacyRefuses(t *testing.T) {
	sound := string(legacyFile("N", "U\x01s", legacyStorage(6)))
	for name, c := range map[string]struct{ text, err string }{
		"version":    {strings.Replace(sound, "M\xe9\x03.", "M\xea\x03.", 1), "version 1002"},
		"big-endian": {strings.Replace(sound, "endian\x88", "endian\x89", 1), "little-endian"},
		"module": {strings.Replace(sound, "U\x07storage", "U\x06module", 1),
			"save its state_dict instead"},
		"global": {strings.Replace(sound, "ctorch\nFloatStorage", "cos\nsystem", 1),
			"asks for os.system"},
		"class": {strings.Replace(sound, "ctorch\nFloatStorage", "ctorch\nfloat32", 1),
			"none that shoal knows"},
		"part": {string(legacyFile("(U\x01vK\x05K\x03t", "U\x01s", legacyStorage(6))),
			"a part of 3 elements"},
		"reference": {strings.Replace(sound, "U\x07storage", "U\x07another", 1),
			"a reference to data that is no storage"},
		"part from nowhere": {string(legacyFile("(U\x01vNK\x03t", "U\x01s", legacyStorage(6))),
			"from element <nil> on"},
		"part of no number": {string(legacyFile("(U\x01vK\x00Nt", "U\x01s", legacyStorage(6))),
			"a part of <nil> elements"},
		"part before": {string(legacyFile("(U\x01vJ\xff\xff\xff\xffK\x03t", "U\x01s",
			legacyStorage(6))), "from element -1 on"},
		"part of less": {string(legacyFile("(U\x01vK\x00J\xff\xff\xff\xfft", "U\x01s",
			legacyStorage(6))), "a part of -1 elements"},
		"part after it": {string(legacyFile("(U\x01vK\x07K\x00t", "U\x01s", legacyStorage(6))),
			"from element 7 on"},
		"part alone": {string(legacyFile("(U\x01vt", "U\x01s", legacyStorage(6))),
			"tuple of three"},
		"unknown key": {string(legacyFile("N", "U\x01t", legacyStorage(6))), "of which no tensor"},
		"twice": {string(legacyFile("N", "U\x01sU\x01s", legacyStorage(6), legacyStorage(6))),
			"stands twice"},
		"no storage":  {string(legacyFile("N", "")), `storage "s" is not in the file`},
		"other count": {string(legacyFile("N", "U\x01s", legacyStorage(5))), "has 5 elements here"},
		"two saves":   {sound + sound, "after the last storage"},
	} {
		if _, _, err := openBytes([]byte(c.text)); err == nil ||
			!strings.Contains(err.Error(), c.err) ||
			!strings.Contains(err.Error(), "x.pt") {
			t.Errorf("%s: %v; want %q", name, err, c.err)
		}
	}
	for n := range len(sound) {
		if _, _, err := openBytes([]byte(sound[:n])); err == nil {
			t.Errorf("cut off at byte %d it passes", n)
		}
	}
}

// TestLegacyPickleIsLong reads a file whose pickle has more bytes than are read at first.
func TestLegacyPickleIsLong(t *testing.T) {
	long := "X\x00\x00\x03\x00" + strings.Repeat("x", 3<<16)
	b := legacyFile("N", "U\x01s", legacyStorage(6))
	b = bytes.Replace(b, []byte("\x80\x02}X\x01\x00\x00\x00w"),
		[]byte("\x80\x02}X\x04\x00\x00\x00text"+long+"sX\x01\x00\x00\x00w"), 1)
	c, _, err := openBytes(b)
	if err != nil || len(c.Values) != 1 || len(c.Tensors) != 1 {
		t.Errorf("%v, %v", c, err)
	}
}

// TestIsLegacy tells by 64 bytes which files are of the form before torch 1.6, and reads one.
func TestIsLegacy(t *testing.T) {
	for name, want := range map[string]bool{"legacy-views.pt": true, "views.pt": false} {
		b, err := os.ReadFile("testdata/torch2.15/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if is := torchzip.IsLegacy(b[:64]); is != want {
			t.Errorf("%s: %v", name, is)
		}
	}
	if _, err := torchzip.Read(format.NewFiles(os.DirFS("testdata/torch2.15")),
		"legacy-views.pt"); err != nil {
		t.Error(err)
	}
}
