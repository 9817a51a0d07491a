"""(placeholder while the interface is agreed)"""
