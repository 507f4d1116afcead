package hf_test

// This file measures the memory that the reader takes.
import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"testing/fstest"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/hf"
	"github.com/shoal-ml/shoal/format/safetensors"
)

// TestMemory reads a header of 100,000,000 bytes with as many tensors as can be in one, and counts
// all that the reader takes for it, also what it has given back.
func TestMemory(t *testing.T) {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, 8+safetensors.MaxHeader),
		safetensors.MaxHeader)
	b = append(b, `{"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`...)
	n := 1
	for ; ; n++ {
		next := fmt.Sprintf(`,"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, n)
		if len(b)+len(next) >= cap(b) {
			break
		}
		b = append(b, next...)
	}
	b = append(append(b, '}'), bytes.Repeat([]byte(" "), cap(b)-len(b)-1)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c, err := hf.Read(format.NewFiles(fstest.MapFS{"model.safetensors": {Data: b}}))
	runtime.ReadMemStats(&after)
	if err != nil || len(c.Tensors) != n {
		t.Fatalf("%v, want %d tensors", err, n)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 512<<20 {
		t.Errorf("the reader took %d bytes altogether", took)
	}
}
