package operator

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/fabric/tcp"
)

// The Secret of a job: what its pods read. authority is the key by which pods trust each other,
// token lets a pod in, status-token lets the operator ask, and job.yaml is the job spec.

// A token is good for tokenLife, and another one is made when a third of that has passed. Only pods
// that start need one, so none is cut off.
const tokenLife = 24 * time.Hour

// annotationMade says when the token was made.
const annotationMade = "shoal-ml.github.io/token-made"

// updateSecret makes the data of a Secret as they should be, and reports whether that changed
// anything.
func updateSecret(s *corev1.Secret, j *v1alpha1.ShoalJob, w wish, now time.Time) (bool, error) {
	if s.Data == nil {
		s.ObjectMeta, s.Data = ownedBy(j, j.Name), map[string][]byte{}
		s.Annotations = map[string]string{}
		authority, err := tcp.NewAuthority()
		if err != nil {
			return false, err
		}
		status := make([]byte, 32)
		_, _ = rand.Read(status) // it never fails
		s.Data["authority"] = []byte(base64.StdEncoding.EncodeToString(authority) + "\n")
		s.Data["status-token"] = []byte(hex.EncodeToString(status) + "\n")
	}
	changed := !bytes.Equal(s.Data["job.yaml"], w.text)
	s.Data["job.yaml"] = w.text
	made, err := time.Parse(time.RFC3339, s.Annotations[annotationMade])
	if err == nil && now.Sub(made) < tokenLife/3 && !made.After(now.Add(time.Hour)) &&
		s.Data["token"] != nil {
		return changed, nil
	}
	authority, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(s.Data["authority"])))
	if err != nil {
		return false, fmt.Errorf("authority of Secret %s: %w; delete the Secret and the job",
			s.Name, err)
	}
	token, err := tcp.NewToken(authority, tokenLife)
	if err != nil {
		return false, fmt.Errorf("authority of Secret %s: %w; delete the Secret and the job",
			s.Name, err)
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[annotationMade] = now.UTC().Format(time.RFC3339)
	s.Data["token"] = []byte(token + "\n")
	return true, nil
}
