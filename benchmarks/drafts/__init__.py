"""Model steps per call with grammar drafts, with n-gram drafts and without drafts."""
