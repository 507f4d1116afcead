package agent_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/api"
	"github.com/shoal-ml/shoal/checkpoint/s3/s3test"
)

// What a worker asks of places elsewhere is checked.
func TestWrongResumes(t *testing.T) {
	s3test.Start(t, nil)
	w := joinRaw(t, startAgent(t, 1), 0)
	for want, r := range map[string]*api.Resume{
		"it takes the URL":    {Do: api.ResumeNewest, Folder: "/tmp"},
		"is none of newest":   {Do: "x", Folder: "s3://models"},
		"names no place":      {Do: api.ResumeNewest, Folder: "s3://models/../x"},
		"make the bucket":     {Do: api.ResumeNewest, Folder: "s3://other"},
		"resume: it takes":    nil,
		"":                    {Do: api.ResumeDone},
		"shoal-manifest.json": {Do: api.ResumeFetch, Folder: "s3://models", Step: 5},
	} {
		reply, _ := w.ask(api.Request{Type: api.TypeResume, Resume: r})
		if got := reply.Field + ": " + reply.Error + reply.Broken; !strings.Contains(got, want) ||
			want == "" && reply.Type != api.TypeResume {
			t.Errorf("%+v; want %q", reply, want)
		}
	}
}
