package safetensors_test

// This file measures the memory that headers and indexes take.
import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format/safetensors"
)

// longestFile returns a file whose header is as long as can be: a beginning, items, an end. item
// returns the i-th item, from 0; spaces fill up the rest.
func longestFile(before string, item func(i int) string, after string) []byte {
	b := make([]byte, 8, 8+safetensors.MaxHeader)
	binary.LittleEndian.PutUint64(b, safetensors.MaxHeader)
	b = append(b, before...)
	for i := 0; ; i++ {
		next := item(i)
		if len(b)+len(next)+len(after) > cap(b) {
			return append(append(b, after...),
				bytes.Repeat([]byte(" "), cap(b)-len(b)-len(after))...)
		}
		b = append(b, next...)
	}
}

// TestMemoryOfHeaders reads the headers of 100,000,000 bytes that ask for most, and counts all that
// the reader takes for them, also what it has given back.
func TestMemoryOfHeaders(t *testing.T) {
	const first, some = `{"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, "xxxxxxxxxxxxxxxx"
	for _, c := range []struct {
		name          string
		before, after string
		item          func(i int) string
		err           string
	}{
		{"tensors", first, `}`, func(i int) string {
			return fmt.Sprintf(`,"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i)
		}, ""},
		{"dimensions", first, `}`, func(i int) string {
			return fmt.Sprintf(`,"%x":{"dtype":"U8","shape":[0%s],"data_offsets":[0,0]}`, i,
				strings.Repeat(",1", 63))
		}, "more than 536870912 bytes of memory"},
		{"texts", first + `,"__metadata__":{"":""`, `}}`, func(i int) string {
			return fmt.Sprintf(`,"%x":""`, i)
		}, "more than 65536 texts"},
		{"a text", first + `,"__metadata__":{"":"`, `"}}`, func(int) string { return some }, ""},
		{"a name", `{"`, `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, func(int) string {
			return some
		}, ""},
		{"a number", `{"":{"shape":[`, `]}}`, func(int) string {
			return "1111111111111111"
		}, "takes whole numbers"},
	} {
		b := longestFile(c.before, c.item, c.after)
		var before, after runtime.MemStats
		tensors := 0
		runtime.ReadMemStats(&before)
		_, err := safetensors.ScanHeader("model.safetensors", bytes.NewReader(b), int64(len(b)),
			func(n, _ int) {
				tensors = n
			}, func(safetensors.Tensor) {})
		runtime.ReadMemStats(&after)
		if c.err == "" && err != nil || c.err != "" &&
			(err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %.300v; want %q", c.name, err, c.err)
		}
		took := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %d tensors, %d bytes", c.name, tensors, took)
		if took > 256<<20 {
			t.Errorf("%s: the reader took %d bytes altogether", c.name, took)
		}
	}
}

// TestLongHeader reads a whole file with a longer header than the reference implementation reads,
// though that writes such ones; a header beyond this reader's own limit is refused.
func TestLongHeader(t *testing.T) {
	text := strings.Repeat("x", safetensors.MaxHeader*6/10)
	b := make([]byte, 8, 3*len(text))
	b = append(append(b, `{"__metadata__":{"a":"`...), text...)
	b = append(append(b, `","b":"`...), text...)
	b = append(b, `"},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`...)
	binary.LittleEndian.PutUint64(b, uint64(len(b)-8))
	b = append(b, 1, 2)
	h, err := safetensors.ReadHeader("w.safetensors", bytes.NewReader(b), int64(len(b)))
	if err != nil || len(h.Tensors) != 1 {
		t.Fatal(err)
	}
	// What is too long for this reader too, and what says so and is something else.
	binary.LittleEndian.PutUint64(b, 5*safetensors.MaxHeader)
	size := int64(6 * safetensors.MaxHeader)
	for first, want := range map[byte]string{'{': "shoal reads up to", 'x': "of another format"} {
		b[8] = first
		if _, err := safetensors.ReadHeader("w", bytes.NewReader(b), size); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", first, err, want)
		}
	}
}
