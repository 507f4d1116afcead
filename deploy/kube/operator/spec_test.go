package operator

import (
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/job"
)

// mistake is a wrong ShoalJob of testdata/mistakes.yaml, which says what the fields are.
type mistake struct {
	Job    json.RawMessage `json:"job"`
	Patch  json.RawMessage `json:"patch"`
	Says   string          `json:"says"`
	Server string          `json:"server"`
}

// readMistakes returns the wrong ShoalJobs.
func readMistakes(t testing.TB) (list []mistake) {
	text, err := os.ReadFile("testdata/mistakes.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &list)
	}
	if err != nil || len(list) < 20 {
		t.Fatalf("%d mistakes: %v", len(list), err)
	}
	return list
}

// on returns a good ShoalJob with a mistake.
func (m mistake) on(t testing.TB, j *v1alpha1.ShoalJob) *v1alpha1.ShoalJob {
	if m.Job != nil {
		j.Spec.Job.Raw = m.Job
	}
	if m.Patch == nil {
		return j
	}
	text, err := json.Marshal(j)
	if err == nil {
		text, err = jsonpatch.MergePatch(text, m.Patch)
	}
	wrong := new(v1alpha1.ShoalJob)
	if err = errors.Join(err, json.Unmarshal(text, wrong)); err != nil {
		t.Fatal(err)
	}
	return wrong
}

// TestInvalid has the operator look at wrong jobs: each gets condition Invalid with the key, and no
// pod, until it is mended.
func TestInvalid(t *testing.T) {
	for i, m := range readMistakes(t) {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			c := newCluster(t, m.on(t, newJob(example)))
			c.reconcile(2)
			got := c.job().Status
			condition := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionInvalid)
			if condition == nil || !strings.HasPrefix(condition.Message, m.Says) ||
				got.Phase != v1alpha1.Invalid || c.names() != "" || len(c.events) != 1 {
				t.Fatalf("%+v, pods %q, events %q, want %q", got, c.names(), c.events, m.Says)
			}
			if m.Patch != nil {
				return
			}
			c.change(func(s *v1alpha1.ShoalJobSpec) { s.Job.Raw = []byte(example) })
			c.reconcile(6)
			c.want(v1alpha1.Running, "big-1-0* big-1-1")
			if meta.FindStatusCondition(c.job().Status.Conditions,
				v1alpha1.ConditionInvalid) != nil {
				t.Error("a job that was mended is still Invalid")
			}
		})
	}
}

// FuzzSpec reads job specs that nobody would write: the operator refuses them in words, or makes
// pods of them that shoal reads.
func FuzzSpec(f *testing.F) {
	for _, m := range readMistakes(f) {
		f.Add(string(m.Job))
	}
	f.Add(example)
	f.Fuzz(func(t *testing.T, spec string) {
		w, err := read(newJob(spec))
		var wrong *invalid
		if err != nil && !errors.As(err, &wrong) {
			t.Errorf("%q: %v", spec, err)
		}
		if err == nil {
			pod, err := job.Parse(w.text)
			if err == nil {
				err = pod.WithDefaults().Validate()
			}
			if err != nil || w.replicas < 1 {
				t.Errorf("%q makes no job: %+v, %v", spec, w, err)
			}
		}
	})
}
