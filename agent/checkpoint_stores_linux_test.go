package agent_test

import (
	"strings"
	"testing"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/checkpoint/s3/s3test"
)

// What a worker asks of places elsewhere is checked: a wrong request gets an error that says why.
func TestWrongResumes(t *testing.T) {
	s3test.Start(t, nil)
	w := joinRaw(t, startAgent(t, 1), 0)
	for want, r := range map[string]*api.ResumeRequest{
		"it takes the URL":    {Do: api.ResumeNewest, Folder: "/tmp"},
		"is none of newest":   {Do: "x", Folder: "s3://models"},
		"names no folder":     {Do: api.ResumeNewest, Folder: "s3://models/../x"},
		"make the bucket":     {Do: api.ResumeNewest, Folder: "s3://other"},
		"folder: it takes":    {},
		"":                    {Do: api.ResumeDone},
		"shoal-manifest.json": {Do: api.ResumeFetch, Folder: "s3://models", Step: 5},
	} {
		reply, _ := w.request(r)
		if got := reply.Field + ": " + reply.Error + reply.Damaged; !strings.Contains(got, want) ||
			want == "" && reply.Type != "resume" {
			t.Errorf("%+v; want %q", reply, want)
		}
	}
}
