package follow

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// BenchmarkOpen opens a run of 30 days: the files are as long as they become, and read once.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	var sense, metrics strings.Builder
	for i := 0; sense.Len() < 15<<20; i++ {
		fmt.Fprintf(&sense, `{"time":%q,"step":%d,"steps":256,"span":10.036,"generation":1,`+
			`"size":4,"batch":256,"samples":65360,"seconds":{"p10":0.037,"median":0.0376,`+
			`"p90":0.0428},"split":{"compute":0.0331,"exposed":0.00026},"slack":[0,0.1,0.2,0.3],`+
			`"loss":0.5,"noise":{"scale":{"low":69.34,"mid":103.55,"high":149.4}}}`+"\n",
			now.Add(time.Duration(i)*time.Minute).UTC().Format(time.RFC3339), 256*(i+1))
	}
	for i := 0; metrics.Len() < 64<<20; i++ {
		metrics.WriteString(metricsLine(i, float64(i)))
	}
	writeRunFile(b, dir, "sense.jsonl", sense.String())
	writeRunFile(b, dir, "metrics.jsonl", metrics.String())
	for b.Loop() {
		f := openRun(b, dir)
		pollView(b, f)
	}
}
